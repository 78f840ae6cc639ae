// The workload of ../clients/workload.py with nsqjs. Arguments: address, topic, channel and options.
const fs = require('fs')
const nsq = require('nsqjs')

const [address, topic, channel, ...words] = process.argv.slice(2)
const [host, port] = address.split(':')
const options = Object.fromEntries(words.map(option))
const singles = Array.from({length: 10}, (_, number) => `single ${number}`)
const batch = Array.from({length: 30}, (_, number) => `batch ${number}`)
const later = 'later'
const requeued = singles[3]
const touched = singles[4]
const total = singles.length + batch.length + 1

// Stay connected until stdin ends, because the last commands may not have been sent yet.
process.stdin.on('end', () => process.exit(0))
process.stdin.resume()

function option(word) {
  const [name, value] = word.split('=')
  if (value === undefined) {
    return [name, true]
  }
  return name === 'auth_secret' ? ['authSecret', value] : [name, fs.readFileSync(value)]
}

function fail(error) {
  console.error(error)
  process.exit(1)
}

function published(publish) {
  return new Promise((resolve, reject) => publish((error) => (error ? reject(error) : resolve())))
}

async function publishAll(writer) {
  for (const body of singles) {
    await published((callback) => writer.publish(topic, body, callback))
  }
  await published((callback) => writer.publish(topic, batch, callback))
  await published((callback) => writer.deferPublish(topic, [later], 100, callback))
}

function consumeAll() {
  const attempts = {}
  const finished = []
  const reader = new nsq.Reader(topic, channel, {nsqdTCPAddresses: [address], maxInFlight: 7, ...options})
  reader.on('error', fail)
  reader.on('message', (message) => {
    const body = message.body.toString()
    attempts[body] = [...(attempts[body] || []), message.attempts]
    if (body === requeued && message.attempts === 1) {
      message.requeue(0, false)
      return
    }
    if (body === touched) {
      message.touch()
    }
    message.finish()
    finished.push(body)
    if (finished.length === total) {
      console.log(JSON.stringify({finished: finished.sort(), attempts}))
    }
  })
  reader.connect()
}

const writer = new nsq.Writer(host, Number(port), options)
writer.on('error', fail)
writer.on('ready', () => {
  publishAll(writer)
    .then(() => {
      writer.close()
      consumeAll()
    })
    .catch(fail)
})
writer.connect()
