"""The simulator: a replica's cache, scheduler and clock, so that policies can be judged without a GPU.

`kv_cache` and `replica` follow vLLM's block pool and scheduler step for step, `cost` says how long a step takes,
`workload` makes traffic, and `emulator` puts one replica behind vLLM's HTTP face. All but the emulator are pure: no
clock, no global randomness, no I/O. The simulator runs the very policies of the router and imports nothing else of it.
"""
