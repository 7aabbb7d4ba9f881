"""Python loaders: every batch is used exactly once and in order, whatever ends or breaks a run."""

import itertools
import pickle
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from run_options import with_options

Z = jnp.zeros(2)


def inner(x, y, batch):
    return jnp.sum((y - x) ** 2) + 0.1 * jnp.mean(batch) * jnp.sum(y), {"batch": batch[0]}


def outer(x, y, batch):
    return jnp.sum((y - 1.0) ** 2) + 0.01 * jnp.mean(batch) * jnp.sum(x), {"batch": batch[0]}


PROBLEM = bl.Problem(inner=inner, outer=outer)
AID = bl.aid(PROBLEM, inner=0.1, adjoint=0.1, outer=0.1)
SOBA = bl.soba(PROBLEM, inner=0.1, adjoint=0.1, outer=0.1, batches="independent")  # three draws a step


def numbered(k, rows=3):
    return bl.Batch(inner=np.full(rows, float(k)), outer=np.full(rows, float(k)))


def seen(result):
    return result.trace["inner/batch"].tolist()


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, (a.run, a.trace), (b.run, b.trace))


class Counting:
    """Batches 0, 1, 2, …, with what is asked for done at some of them, once."""

    def __init__(self, length=None, at=(), do=None):
        self.length, self.at, self.do = length, set(at), do
        self.given = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.given in self.at:
            self.at.remove(self.given)
            self.do()
        if self.given == self.length:
            raise StopIteration
        self.given += 1
        return numbered(self.given - 1)


class Repeatable:
    """One pass after another over `length` batches; it counts its passes."""

    def __init__(self, length):
        self.length, self.passes = length, 0

    def __iter__(self):
        self.passes += 1
        return iter([numbered(k) for k in range(self.length)])


class Stateful(Counting):
    """Its position by grain's names."""

    def get_state(self):
        return {"given": self.given}

    def set_state(self, state):
        self.given = state["given"]


class StatefulLoader:
    """Its position by torch's names, kept by the loader and not by its iterators."""

    def __init__(self, length=5):
        self.length, self.passes, self.at = length, 0, 0

    def __iter__(self):
        while self.at < self.length:
            self.at += 1
            yield np.full(3, 100.0 * self.passes + self.at - 1)
        self.passes, self.at = self.passes + 1, 0

    def state_dict(self):
        return {"passes": self.passes, "at": self.at}

    def load_state_dict(self, state):
        self.passes, self.at = state["passes"], state["at"]


def broken_disk():
    raise OSError("the disk is gone")


def interrupt():
    signal.raise_signal(signal.SIGINT)


# Pairs


class Shuffling:
    """A loader as people have them: reshuffled at every pass."""

    def __init__(self, length, seed):
        self.length, self.rng = length, np.random.default_rng(seed)

    def __iter__(self):
        return iter([np.full(3, float(k)) for k in self.rng.permutation(self.length)])


@pytest.mark.slow
def test_a_pair_of_unequal_lengths_reshuffles_at_every_pass():
    result = bl.run(AID, Z, Z, data=bl.loaders(Shuffling(5, 0), Shuffling(3, 1)), steps=15)
    for level, length, seed in (("inner", 5, 0), ("outer", 3, 1)):
        drawn = result.trace[f"{level}/batch"].astype(int)
        passes = drawn.reshape(-1, length)
        assert (np.sort(passes, axis=1) == np.arange(length)).all()
        rng = np.random.default_rng(seed)
        np.testing.assert_array_equal(passes, [rng.permutation(length) for _ in passes])
        cycled = [int(batch[0]) for batch in itertools.islice(itertools.cycle(Shuffling(length, seed)), 15)]
        assert drawn.tolist()[:length] == cycled[:length]
        assert drawn.tolist() != cycled  # which has one order for ever


@pytest.mark.slow
def test_one_level_alone():
    problem = bl.Problem(inner=inner, outer=lambda x, y: jnp.sum((y - 1.0) ** 2))
    result = bl.run(
        bl.aid(problem, inner=0.1, adjoint=0.1, outer=0.1),
        Z,
        Z,
        data=bl.loaders(inner=Shuffling(4, 0)),
        steps=6,
    )
    assert sorted(seen(result)[:4]) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: bl.loaders(), ValueError, ["at least one loader", "inner=... or outer=..."]),
        (lambda: bl.loaders(inner=3), TypeError, ["the inner loader must be an iterable", "int"]),
        (lambda: bl.loaders(outer={"a": 1}), TypeError, ["the outer loader must be an iterable", "dict"]),
        (lambda: bl.loaders(inner=numbered(0)), TypeError, ["the inner loader must be an iterable", "Batch"]),
        (
            lambda: bl.loaders(inner=iter([1])),
            TypeError,
            ["the inner loader is an iterator (list_iterator)", "cannot begin again", "the loader itself"],
        ),
        (lambda: bl.loaders(inner=(k for k in range(3))), TypeError, ["is an iterator (generator)"]),
    ],
)
def test_loaders_that_are_refused(make, error, words, as_users_see_it):
    with pytest.raises(error) as refusal:
        make()
    for word in words:
        assert word in str(refusal.value)


def test_a_loader_without_batches():
    with pytest.raises(
        ValueError, match="the outer loader has no batches at all: give one that is not empty"
    ):
        bl.run(AID, Z, Z, data=bl.loaders([np.ones(3)], []), steps=2)
    with pytest.raises(ValueError, match="a loader without a single batch: give one that is not used up"):
        bl.run(AID, Z, Z, data=[], steps=2)


def test_an_iterator_with_a_position_that_ends_says_so():
    class Few(Stateful):
        def __next__(self):
            return super().__next__().inner

    with pytest.raises(
        bl.RunError, match=r"the inner loader is an iterator \(Few\), which has ended"
    ) as error:
        bl.run(AID, Z, Z, data=bl.loaders(inner=Few(3), outer=[np.ones(3)]), steps=9)
    assert error.value.result.steps == 3


def test_what_a_loader_gives_must_be_batches():
    with pytest.raises(
        TypeError, match=r"data must be a bl\.Batch, not tuple: pass bl\.Batch\(inner=\.\.\., outer="
    ):
        bl.run(AID, Z, Z, data=[(np.ones(3), np.ones(3))], steps=1)
    with pytest.raises(ValueError, match="no outer data were given"):
        bl.run(AID, Z, Z, data=[bl.Batch(inner=np.ones(3))], steps=1)


# A loader that raises


@pytest.mark.parametrize("every", [1, 3, None])
@pytest.mark.parametrize("k", [1, 2, 5, 6])
def test_a_loader_that_raises_loses_nothing(k, every):
    unbroken = bl.run(AID, Z, Z, data=Counting(), steps=8, options=bl.RunOptions(every=every))
    loader = Counting(at=[k], do=broken_disk)
    with pytest.raises(
        bl.RunError, match=rf"the loader raised OSError .*after {k} steps?\. .*resume=error\.result"
    ) as e:
        bl.run(AID, Z, Z, data=loader, steps=8, options=bl.RunOptions(every=every))
    result = e.value.result
    assert isinstance(e.value.__cause__, OSError)
    assert (result.status.code, result.steps, len(seen(result))) == (bl.Code.FAILED, k, k)
    same(bl.run(AID, data=loader, steps=8 - k, options=bl.RunOptions(every=every), resume=result), unbroken)


def test_a_loader_that_raises_before_the_first_step():
    with pytest.raises(
        bl.RunError, match="the loader raised OSError before the first step: the disk is gone"
    ) as e:
        bl.run(AID, Z, Z, data=Counting(at=[0], do=broken_disk), steps=3)
    assert e.value.result is None
    assert isinstance(e.value.__cause__, OSError)


def test_a_pair_of_which_one_raises_loses_nothing_of_the_other():
    class Level(Stateful):
        def __next__(self):
            return super().__next__().inner

    pair = bl.loaders(inner=Level(), outer=Level(at=[4], do=broken_disk))
    with pytest.raises(bl.RunError) as e:
        bl.run(AID, Z, Z, data=pair, steps=9)
    assert e.value.result.steps == 4
    resumed = bl.run(AID, data=pair, steps=5, resume=e.value.result)
    assert seen(resumed) == resumed.trace["outer/batch"].tolist() == list(range(9))


@pytest.mark.slow
@pytest.mark.parametrize("k", [3, 4, 5, 10])
def test_the_other_draws_of_a_step_are_not_lost(k):
    unbroken = bl.run(SOBA, Z, Z, data=Counting(), steps=5)
    loader = Counting(at=[k], do=broken_disk)
    with pytest.raises(bl.RunError) as e:
        bl.run(SOBA, Z, Z, data=loader, steps=5)
    assert e.value.result.steps == k // 3
    same(bl.run(SOBA, data=loader, steps=5 - k // 3, resume=e.value.result), unbroken)


@pytest.mark.parametrize("pair", [False, True])
def test_a_generator_does_not_survive_its_error_and_that_is_said(pair):
    class Generating:
        def __iter__(self):
            for k in range(6):
                if k == 3:
                    broken_disk()
                yield np.full(3, float(k)) if pair else numbered(k)

    loader = bl.loaders(Generating(), Generating()) if pair else Generating()
    with pytest.raises(bl.RunError) as e:
        bl.run(AID, Z, Z, data=loader, steps=6)
    with pytest.raises(
        bl.RunError, match=r"did not survive the error .*write it as a class with __next__"
    ) as again:
        bl.run(AID, data=loader, steps=3, resume=e.value.result)
    assert again.value.result.steps == 3


@pytest.mark.slow
def test_an_objective_that_raises_gives_its_batch_back():
    trouble = [False]

    def fragile(x, y, batch):
        if batch.shape == (4,) and trouble[0]:
            raise RuntimeError("no")
        return inner(x, y, batch)

    solver = bl.aid(bl.Problem(inner=fragile, outer=outer), inner=0.1, adjoint=0.1, outer=0.1)
    sizes = [3, 3, 3, 4, 3, 3]
    batches = lambda: [numbered(k, rows) for k, rows in enumerate(sizes)]
    unbroken = bl.run(solver, Z, Z, data=batches(), steps=6)
    solver = bl.aid(bl.Problem(inner=fragile, outer=outer), inner=0.1, adjoint=0.1, outer=0.1)
    trouble[0], loader = True, iter(batches())
    with pytest.raises(bl.RunError, match="an objective raised RuntimeError") as e:
        bl.run(solver, Z, Z, data=loader, steps=6, options=bl.RunOptions(every=2))
    trouble[0] = False
    resumed = bl.run(solver, data=loader, steps=6 - e.value.result.steps, resume=e.value.result)
    assert seen(resumed) == list(range(6))
    np.testing.assert_array_equal(resumed.x, unbroken.x)


# Resuming in the same loader


@pytest.mark.parametrize("make", [Counting, lambda: map(numbered, itertools.count()), lambda: Repeatable(50)])
@pytest.mark.parametrize("every", [1, 4, None])
def test_the_same_object_goes_on(make, every):
    unbroken = bl.run(AID, Z, Z, data=make(), steps=12)
    loader = make()
    result = bl.run(AID, Z, Z, data=loader, steps=5, options=bl.RunOptions(every=every))
    for steps in (1, 2, 4):
        result = bl.run(AID, data=loader, steps=steps, options=bl.RunOptions(every=every), resume=result)
    same(result, unbroken)


def test_after_a_tolerance_stopped_it_within_a_chunk():
    plain = bl.run(AID, Z, Z, data=Counting(), steps=20, options=bl.RunOptions(every=20))
    norms = plain.trace["hypergradient_norm"]
    stop = 6
    tol = float(norms[stop]) if norms[stop] < norms[:stop].min() else None
    hook = _StopAt(stop)
    loader = Counting()
    options = dict(tol=tol) if tol else dict(hooks=[hook])
    result = bl.run(
        AID,
        Z,
        Z,
        data=loader,
        steps=20,
        **with_options(options | dict(every=10)),
    )
    assert result.steps < 10 <= loader.given
    same(bl.run(AID, data=loader, steps=20 - result.steps, resume=result), plain)


class _StopAt(bl.hooks.Hook):
    decides = True

    def __init__(self, step):
        self.step = step

    def __call__(self, event):
        return bl.hooks.Stop("enough", step=self.step) if event.step >= self.step else None


@pytest.mark.parametrize("stop", [1, 3, 7, 10])
def test_after_a_hook_stopped_it_at_an_earlier_step(stop):
    plain, loader = bl.run(AID, Z, Z, data=Counting(), steps=14), Counting()
    result = bl.run(AID, Z, Z, data=loader, steps=14, options=bl.RunOptions(every=10), hooks=[_StopAt(stop)])
    assert result.steps == stop
    same(bl.run(AID, data=loader, steps=14 - stop, resume=result), plain)


@pytest.mark.parametrize("k", [1, 4, 7])
@pytest.mark.parametrize("every", [1, 3, None])
def test_after_ctrl_c_in_the_loader(k, every):
    plain, loader = bl.run(AID, Z, Z, data=Counting(), steps=10), Counting(at=[k], do=interrupt)
    result = bl.run(
        AID,
        Z,
        Z,
        data=loader,
        steps=10,
        options=bl.RunOptions(every=every, prefetch=0),
    )
    assert result.status.code is bl.Code.INTERRUPTED
    assert k <= result.steps <= k + 1
    assert loader.given <= result.steps + 1  # one batch is looked ahead at, and kept
    same(bl.run(AID, data=loader, steps=10 - result.steps, resume=result), plain)


def test_after_a_keyboard_interrupt_raised_by_the_loader_itself():
    def stop():
        raise KeyboardInterrupt

    plain, loader = bl.run(AID, Z, Z, data=Counting(), steps=10), Counting(at=[5], do=stop)
    result = bl.run(AID, Z, Z, data=loader, steps=10, options=bl.RunOptions(every=4))
    assert result.status.code is bl.Code.INTERRUPTED
    assert result.steps == 5  # every finished step is kept, in the middle of a chunk too
    same(bl.run(AID, data=loader, steps=5, resume=result), plain)


def test_after_it_ran_dry():
    result = bl.run(AID, Z, Z, data=Counting(4), steps=9)
    assert (result.status.code, result.steps) == (bl.Code.EXHAUSTED, 4)
    assert "after 4 of 9 steps" in result.status.message
    assert "bl.loaders" in result.status.message
    assert seen(result) == [0, 1, 2, 3]


def test_an_iterator_that_ran_dry_stays_dry_and_a_loader_begins_another_pass():
    dry = Counting(4)
    result = bl.run(AID, Z, Z, data=dry, steps=9)
    assert bl.run(AID, data=dry, steps=2, resume=result).steps == 4
    loader = Repeatable(4)
    result = bl.run(AID, Z, Z, data=loader, steps=9)
    result = bl.run(AID, data=loader, steps=9, resume=result)
    assert seen(result) == [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_pass_that_ended_with_the_run_is_followed_by_another():
    loader = Repeatable(4)
    result = bl.run(AID, Z, Z, data=loader, steps=4)
    assert result.status.code is bl.Code.COMPLETED
    result = bl.run(AID, data=loader, steps=3, resume=result)
    assert (result.status.code, seen(result)) == (bl.Code.COMPLETED, [0, 1, 2, 3, 0, 1, 2])


def test_a_result_that_the_loader_has_left_behind_is_refused():
    loader = Counting()
    first = bl.run(AID, Z, Z, data=loader, steps=3)
    last = bl.run(AID, data=loader, steps=2, resume=first)
    with pytest.raises(
        ValueError, match=r"the loader has gone on since that result.*get_state and set_state"
    ):
        bl.run(AID, data=loader, steps=2, resume=first)
    assert seen(bl.run(AID, data=loader, steps=2, resume=last)) == list(range(7))


def test_a_loader_with_a_position_can_be_resumed_from_twice():
    loader = Stateful()
    first = bl.run(AID, Z, Z, data=loader, steps=3)
    last = bl.run(AID, data=loader, steps=4, resume=first)
    again = bl.run(AID, data=loader, steps=4, resume=first)
    same(again, last)
    assert seen(bl.run(AID, data=loader, steps=2, resume=last)) == list(range(9))
    assert seen(bl.run(AID, data=loader, steps=1, resume=again)) == list(range(8))


# Resuming with other objects, as in another process


@pytest.mark.slow
@pytest.mark.parametrize("solver", [AID, SOBA], ids=["one draw", "three draws"])
@pytest.mark.parametrize("every", [2, None])
def test_a_position_by_grain_s_names(solver, every):
    unbroken = bl.run(solver, Z, Z, data=Stateful(), steps=9)
    half = bl.run(solver, Z, Z, data=Stateful(), steps=4, options=bl.RunOptions(every=every))
    same(bl.run(solver, data=Stateful(), steps=5, resume=half), unbroken)


def test_a_result_goes_to_another_process_with_the_position_alone():
    unbroken = bl.run(AID, Z, Z, data=Stateful(), steps=9)
    saved = pickle.dumps(bl.run(AID, Z, Z, data=Stateful(), steps=4, options=bl.RunOptions(every=3)))
    same(bl.run(AID, data=Stateful(), steps=5, resume=pickle.loads(saved)), unbroken)
    saved = pickle.dumps(bl.run(AID, Z, Z, data=Counting(), steps=4))
    with pytest.raises(ValueError, match="cannot say where it stands"):
        bl.run(AID, data=Counting(), steps=5, resume=pickle.loads(saved))


def test_a_pair_with_positions_by_torch_s_names():
    pair = lambda: bl.loaders(inner=StatefulLoader(5), outer=StatefulLoader(3))
    unbroken = bl.run(AID, Z, Z, data=pair(), steps=17)
    assert seen(unbroken)[:7] == [0, 1, 2, 3, 4, 100, 101]
    for cut in (1, 3, 5, 6, 15):
        half = bl.run(AID, Z, Z, data=pair(), steps=cut)
        same(bl.run(AID, data=pair(), steps=17 - cut, resume=half), unbroken)


def test_a_position_kept_by_the_iterators_of_a_loader():
    class Loader:
        def __iter__(self):
            return Stateful()

    unbroken = bl.run(AID, Z, Z, data=Loader(), steps=7)
    half = bl.run(AID, Z, Z, data=Loader(), steps=3)
    same(bl.run(AID, data=Loader(), steps=4, resume=half), unbroken)


def test_the_position_goes_to_where_it_came_from_if_both_could_take_it():
    class Loader:
        """Has a position of its own kind, as do its iterators: the two must not be confused."""

        def __iter__(self):
            return Stateful()

        def get_state(self):
            raise AssertionError("the iterator was asked first")

        def set_state(self, state):
            raise AssertionError("the iterator's state was given to the loader")

    half = bl.run(AID, Z, Z, data=Loader(), steps=3)
    assert seen(bl.run(AID, data=Loader(), steps=2, resume=half)) == [0, 1, 2, 3, 4]


def test_a_position_after_stopping_within_a_chunk_is_that_of_the_steps_kept():
    half = bl.run(AID, Z, Z, data=Stateful(), steps=14, options=bl.RunOptions(every=10), hooks=[_StopAt(3)])
    assert seen(bl.run(AID, data=Stateful(), steps=4, resume=half)) == list(range(7))


@pytest.mark.parametrize(
    "other",
    [lambda: [numbered(k) for k in range(9)], Counting, lambda: bl.loaders([np.ones(3)], [np.ones(3)])],
)
def test_another_loader_without_a_position_is_refused(other):
    half = bl.run(AID, Z, Z, data=other(), steps=3)
    with pytest.raises(
        ValueError,
        match=r"the data loader cannot say where it stands or be moved there, so a resumed run would silently see its "
        r"first batches again: pass the very loader object of the earlier run, or one with get_state and set_state",
    ):
        bl.run(AID, data=other(), steps=2, resume=half)


@pytest.mark.slow
def test_data_in_memory_and_a_loader_are_not_exchanged():
    memory = bl.Batch(inner=np.ones(3), outer=np.ones(3))
    with pytest.raises(ValueError, match="the earlier run had its data in memory, this one has a loader"):
        bl.run(AID, data=Counting(), steps=1, resume=bl.run(AID, Z, Z, data=memory, steps=1))
    with pytest.raises(
        ValueError, match=r"resume= is of another run: its data was a loader, here it is FullBatch"
    ):
        bl.run(AID, data=memory, steps=1, resume=bl.run(AID, Z, Z, data=Counting(), steps=1))


# How many batches


def test_a_step_of_three_draws_takes_three():
    loader = Counting()
    result = bl.run(SOBA, Z, Z, data=loader, steps=4)
    assert loader.given == 12
    assert seen(result) == [0, 3, 6, 9]  # the inner metrics are of the draw for y
    result = bl.run(SOBA, data=loader, steps=2, resume=result)
    assert (loader.given, seen(result)) == (18, [0, 3, 6, 9, 12, 15])


@pytest.mark.slow
def test_three_draws_give_what_three_draws_of_a_stream_give():
    class Listed:
        """A stream of the same batches."""

        start = staticmethod(lambda step: jnp.int32(step))

        @staticmethod
        def next(cursor):
            batch = jnp.full(3, cursor.astype(float))
            return cursor + 1, bl.Batch(inner=batch, outer=batch)

    jax.tree_util.register_static(Listed)
    stream = bl.run(SOBA, Z, Z, data=Listed(), steps=5, warmup=2)
    loader = bl.run(SOBA, Z, Z, data=Counting(), steps=5, warmup=2)
    np.testing.assert_allclose(loader.x, stream.x, rtol=1e-12)
    assert seen(loader) == seen(stream)


def test_an_end_in_the_middle_of_a_step():
    result = bl.run(SOBA, Z, Z, data=Counting(7), steps=4)
    assert (result.status.code, result.steps) == (bl.Code.EXHAUSTED, 2)


def test_draws_of_different_shapes_are_refused():
    ragged = [numbered(0), numbered(1), numbered(2, rows=2)]
    with pytest.raises(
        ValueError, match=r"the batches of one step must have the same shapes.*drop an incomplete"
    ):
        bl.run(SOBA, Z, Z, data=ragged, steps=1)


@pytest.mark.slow
@pytest.mark.parametrize("warmup", [1, 3])
def test_a_warm_up_takes_batches_of_its_own_from_streams_and_loaders_alike(warmup):
    arrays = np.arange(20.0)
    stream = bl.epochs(bl.Batch(inner=arrays, outer=arrays), 2, seed=4)
    cursor, listed = stream.start(0), []
    for _ in range(10):
        cursor, batch = stream.next(cursor)
        listed.append(batch)
    from_stream = bl.run(AID, Z, Z, data=stream, steps=4, warmup=warmup)
    loader = iter(listed)
    from_loader = bl.run(AID, Z, Z, data=loader, steps=4, warmup=warmup)
    assert (
        seen(from_stream)
        == seen(from_loader)
        == [float(batch.inner[0]) for batch in listed[warmup : warmup + 4]]
    )
    np.testing.assert_allclose(from_loader.x, from_stream.x, rtol=1e-12)
    np.testing.assert_allclose(from_loader.y, from_stream.y, rtol=1e-12)
    assert float(next(loader).inner[0]) == float(listed[warmup + 4].inner[0])


def test_a_loader_that_ends_or_raises_within_the_warm_up():
    result = bl.run(AID, Z, Z, data=Counting(2), steps=3, warmup=4)
    assert (result.status.code, result.steps) == (bl.Code.EXHAUSTED, 0)
    with pytest.raises(
        bl.RunError, match="the loader, in the warm-up after 2 of 4 steps, raised OSError"
    ) as e:
        bl.run(AID, Z, Z, data=Counting(at=[2], do=broken_disk), steps=3, warmup=4)
    assert e.value.result.steps == 0


@pytest.mark.parametrize("every", [1, 3, 5, None])
def test_looking_ahead_never_pulls_a_batch_that_is_lost(every):
    loader = Counting()
    bl.run(AID, Z, Z, data=loader, steps=7, options=bl.RunOptions(every=every))
    assert loader.given == 7  # a run that took all its steps leaves the rest to others
    assert next(loader).inner[0] == 7


@pytest.mark.slow
def test_ragged_batches_are_compiled_once_for_each_shape():
    traced = []

    def counting(x, y, batch):
        traced.append(batch.shape)
        return inner(x, y, batch)

    solver = bl.aid(bl.Problem(inner=counting, outer=outer), inner=0.1, adjoint=0.1, outer=0.1)
    sizes = [4, 4, 3, 4, 4, 3]
    result = bl.run(solver, Z, Z, data=[numbered(k, rows) for k, rows in enumerate(sizes)], steps=6)
    assert seen(result) == list(range(6))
    before = len(traced)
    bl.run(solver, Z, Z, data=[numbered(k, rows) for k, rows in enumerate(sizes)], steps=6)
    assert len(traced) == before
    np.testing.assert_array_equal(
        result.x, bl.run(solver, Z, Z, data=[numbered(k) for k in range(6)], steps=6).x
    )  # the mean is the same, whatever the rows


@pytest.mark.slow
def test_a_run_that_diverges_gives_back_what_it_undid():
    solver = bl.aid(PROBLEM, inner=0.1, adjoint=0.1, outer=0.1)
    bad = [numbered(k) for k in range(4)] + [numbered(np.nan)] + [numbered(k) for k in range(5, 9)]
    loader = iter(bad)
    result = bl.run(solver, Z, Z, data=loader, steps=9, options=bl.RunOptions(every=9))
    assert result.status.code is bl.Code.DIVERGED
    assert "the data contain NaN" in result.status.message
    assert seen(result) == [0, 1, 2, 3]
    again = bl.run(solver, data=loader, steps=2, resume=result)
    assert again.status.code is bl.Code.DIVERGED  # it is the same batch that comes again
