"""Kafka, through librdkafka.

* `source`: splits are partitions, a position is the next offset. Offsets are committed back to the
  group, if there is one, for monitoring only.
* `sink`: librdkafka can't resume a prepared transaction, and one that is left open times out and loses
  its records. So the records are held in the snapshot, and the commit of a checkpoint is one short
  transaction with a marker in it. Nothing is open between two commits.
"""
