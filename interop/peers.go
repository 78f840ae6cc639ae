//go:build peers

// Package peers pins the reference programs that the interop tests and the benchmarks run beside nsqx.
package peers

import (
	_ "github.com/nsqio/nsq/apps/nsq_stat"
	_ "github.com/nsqio/nsq/apps/nsq_tail"
	_ "github.com/nsqio/nsq/apps/nsq_to_file"
	_ "github.com/nsqio/nsq/apps/nsq_to_http"
	_ "github.com/nsqio/nsq/apps/nsq_to_nsq"
	_ "github.com/nsqio/nsq/apps/nsqadmin"
	_ "github.com/nsqio/nsq/apps/nsqd"
	_ "github.com/nsqio/nsq/apps/nsqlookupd"
	_ "github.com/nsqio/nsq/apps/to_nsq"
	_ "github.com/nsqio/nsq/bench/bench_channels"
	_ "github.com/nsqio/nsq/bench/bench_reader"
	_ "github.com/nsqio/nsq/bench/bench_writer"
)
