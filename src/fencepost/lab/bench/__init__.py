"""The benchmark: what the manager costs, as ratios to what the same machine does without it in the same run.

Absolute figures on shared machines mean little, so each figure stands beside what it is compared with: `pgbench` on the
same server, the same transactions blasted at the same chain with nothing in between, one commit and one round trip.
Everything runs on real parts but the ceiling, whose chain is a stub that answers at once.
"""
