"""Threads that run jobs of the disk and report their end in the event loop."""

import asyncio
import threading

from nsqx.nsqd.sync_threads import JobThreads, SyncThreads


class Gate:
    """A job that runs until it is opened."""

    def __init__(self):
        self.opened = threading.Event()
        self.began = threading.Event()
        self.thread = None

    def run(self):
        self.thread = threading.current_thread()
        self.began.set()
        assert self.opened.wait(30)


async def run_one(threads, job):
    done = asyncio.get_running_loop().create_future()
    threads.run(job, done.set_result)
    return await done


def test_the_end_of_a_job_is_reported_in_the_loop():
    async def scenario():
        threads = SyncThreads()
        job = Gate()
        job.opened.set()
        reported = asyncio.get_running_loop().create_future()
        threads.run(job, lambda job: reported.set_result((job, threading.current_thread())), is_urgent=True)
        assert await reported == (job, threading.current_thread())
        assert job.thread is not threading.current_thread()
        await threads.close()
        assert not job.thread.is_alive()

    asyncio.run(scenario())


def test_a_slow_job_delays_no_other_as_long_as_there_are_threads():
    async def scenario():
        threads = JobThreads(2, "test")
        slow, quick, late = Gate(), Gate(), Gate()
        slow_end = asyncio.create_task(run_one(threads, slow))
        await asyncio.to_thread(slow.began.wait, 30)
        quick.opened.set()
        assert await run_one(threads, quick) is quick
        late_end = asyncio.create_task(run_one(threads, late))
        await asyncio.to_thread(late.began.wait, 30)
        assert late.thread is quick.thread
        for job in (slow, late):
            job.opened.set()
        assert await asyncio.gather(slow_end, late_end) == [slow, late]
        await asyncio.to_thread(threads.join)

    asyncio.run(scenario())


def test_one_thread_serves_jobs_that_follow_each_other():
    async def scenario():
        threads = JobThreads(8, "test")
        used = set()
        for _ in range(5):
            job = Gate()
            job.opened.set()
            await run_one(threads, job)
            used.add(job.thread)
        assert len(used) == 1
        await asyncio.to_thread(threads.join)

    asyncio.run(scenario())


def test_a_job_that_raises_ends_too(monkeypatch):
    class Broken:
        def run(self):
            raise ValueError("a mistake")

    raised = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: raised.append(arguments.exc_type))

    async def scenario():
        threads = JobThreads(1, "test")
        broken, job = Broken(), Gate()
        job.opened.set()
        assert await run_one(threads, broken) is broken
        assert await run_one(threads, job) is job
        await asyncio.to_thread(threads.join)

    asyncio.run(scenario())
    assert raised == [ValueError]
