"""Steps of which ranks wait for each other's messages: pipelines.

Input: a schedule of torch.distributed.pipelining, as one rank has made it. Output: its step, run
and recorded; the values that small messages bring from other ranks. Invariant: torch's own
schedules run; nothing is sent.

Its files, in reading order:

    mailboxes  what ranks send to one rank each, for the ranks that are run after them
    loop       a training loop around ``schedule.step``
    exchanges  point-to-point messages on the streams of a GPU
"""
