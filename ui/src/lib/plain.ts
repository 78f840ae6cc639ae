/** The failures of daemons in plain words. NSQ's API has them in the wording of Go's HTTP client. */

const REPLACEMENTS: [RegExp, string][] = [
  [/\b(?:Get|Post|Put|Delete|Head) "https?:\/\/([^/"]+)[^"]*": /gi, "$1: "],
  [/context deadline exceeded(?: \([^)]*\))?/g, "no answer in time"],
  [/dial tcp: lookup (\S+): no such host/g, "unknown host $1"],
  [/dial tcp \S+: (?:connect|i\/o timeout): /g, ""],
  [/read tcp \S+: read: connection reset by peer/g, "the connection was reset"],
  [/\bunexpected EOF\b|: EOF\b/g, ": the connection was closed before the end of the answer"],
  [/got response (\d+) ([A-Za-z ]*?) ?"[^"\n]*"/g, "the answer is $1 $2"],
  [/failed to query any (nsqd|nsqlookupd): /g, "no $1 answers: "],
];

export function plain(text: string): string {
  return REPLACEMENTS.reduce((result, [pattern, words]) => result.replace(pattern, words), text);
}
