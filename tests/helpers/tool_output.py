"""Output of the vendor's tools."""

from __future__ import annotations

OLD = """Affinity: Script has finished successfully
Welcome to HCCL demo
\x1b[32m###############################################################################\x1b[0m
[BENCHMARK] hcclAllReduce(src!=dst, count=8388608, dtype=float, iterations=1000)
[BENCHMARK]     NW Bandwidth   : 258.259144 GB/s
[BENCHMARK]     Algo Bandwidth : 147.576654 GB/s
###############################################################################
"""
NEW = """[BENCHMARK] hcclReduceScatter(dataSize=33554432, count=8388608, dtype=bfloat16, iterations=10)
[BENCHMARK]   NW Bandwidth : 950.5 MB/s
[BENCHMARK]   Algo Bandwidth:1.5 GB/s
"""
LATENCY = """[BENCHMARK] hcclAllReduce(src!=dst, data_size=1024, count=256, dtype=float, iterations=7)
[BENCHMARK]     Host Latency   : 0.25 ms
[BENCHMARK]     Device Latency : 12 us
"""
TABLE = """[BANDWIDTH SUMMARY REPORT]
(src!=dst, collective=all_reduce, iterations=1000)

size              count             type              redop             time              algoBW            nw_bw
(B)               (elements)                                            (ms)              (GB/s)            (GB/s)
1048576           262144            float             sum               0.031 ms          33.825 GB/s       59.19 GB/s
33554432          8388608           float             sum               0.227 ms          147.57 GB/s       258.25 GB/s
"""
LATENCY_TABLE = """[LATENCY SUMMARY REPORT]
(src!=dst, collective=all_gather, iterations=5)
size              count             type              redop             Host Latency      Device Latency
(B)               (elements)                                            (ms)              (ms)
1048576           262144            float             sum               0.5               0.25
"""
CARDS = "index, module_id, name\n1, 0, HL-225\n\x1b[32m0, 2, HL-225\x1b[0m\n"
TOPOLOGY = """modID   CPU Affinity    NUMA Affinity
-----   ------------    -------------
0       0-39, 80-119    0
1       40-79           1
"""
