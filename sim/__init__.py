"""The simulator: a replica's cache, scheduler and clock, so that policies can be judged without a GPU.

`kv_cache` and `replica` follow vLLM's block pool and scheduler step for step (`jobs` are what goes in and comes out),
`cost` says how long a step takes, `workload` makes traffic; these are pure: no clock, no global randomness, no I/O.
`live` runs one replica on the wall clock and `emulator` puts it behind vLLM's HTTP face; its parts are the
`emulator_*` modules. The simulator runs the very policies of the router and imports nothing else of it.
"""
