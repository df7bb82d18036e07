"""What is left of requests that ended: their memory at once, their report as the lists of a step hold it."""

from native_driver import Driver, small_config

from deepinfer_contracts import FinishReason, StepFlags


def test_aborts_beyond_one_report_are_all_reported_in_order():
    driver = Driver(small_config())
    requests = [driver.submit([1, 2, 3], max_tokens=4) for _ in range(11)]
    driver.core.abort([r.uid for r in requests])
    reported = []
    for _ in range(4):
        o = driver.schedule()
        reported += o.finished_uid.tolist()
        assert all(reason == FinishReason.ABORT for reason in o.finished_reason.tolist())
        driver.core.check()
    assert reported == [r.uid for r in requests]
    driver.poll()
    assert all(r.reason == FinishReason.ABORT for r in requests)
    driver.core.audit()


def test_remap_is_flagged_as_identity_exactly_while_rows_keep_their_places():
    driver = Driver(small_config(depth=2, prefill_interval_all=1000, prefill_interval_any=1000))
    lengths = (8, 3, 8)
    for n, length in enumerate(lengths):
        driver.submit([n] * 3, max_tokens=length, stop=())
    flagged = set()
    while driver.core.unfinished:
        o = driver.step()
        is_identity = o.num_reqs > 0 and o.remap.tolist() == list(range(o.num_reqs))
        assert bool(o.flags & StepFlags.REMAP_IDENTITY) == is_identity
        if o.num_reqs and (o.remap >= 0).all():
            flagged.add(is_identity)
    assert flagged == {True, False}, "the middle row ended, so the last one moved up once"
