"""One decode step of a fixed batch."""

from gpt2np.generation import Scheduler


def decode_step(model, sequences):
    """Let every sequence grow by an id or more; caches stay when sequences end."""
    scheduler = Scheduler(model, max_running=len(sequences), free_caches=False)
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.step()
    assert not scheduler.waiting
