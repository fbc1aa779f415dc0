"""Decode steps of a fixed batch."""

from gpt2np.generation.scheduler import Scheduler


def decode_step(model, sequences):
    """Run one decode step of all sequences; their caches remain when they end."""
    scheduler = Scheduler(model, max_running=len(sequences), free_caches=False)
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.step()
    assert not scheduler.waiting
