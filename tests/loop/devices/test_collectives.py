"""What devices tell each other: the reader of compiled programs on texts with known answers, and the steps' own."""

import jax
import nets
import numpy as np
import pod
import pytest
from collectives import Collective, collectives
from jax.sharding import Mesh

import bilevel as bl

MESH = Mesh(np.array(jax.devices()), ("data",))

TEXT = """HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %ag = f32[8,4]{1,0} all-gather(%w), channel_id=1, replica_groups={{0,1},{2,3}}, dimensions={0}
  ROOT %t = (s32[], f32[8,4]{1,0}) tuple(%i, %ag)
}

%unknown (p: (s32[])) -> (s32[]) {
  %rs = bf16[16]{0} reduce-scatter(%g), replica_groups=[2,4]<=[8], to_apply=%add, dimensions={0}
  %inner = (s32[], f32[8,4]{1,0}) while(%q), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  ROOT %t.1 = (s32[]) tuple(%i)
}

ENTRY %main (a: f64[5]) -> f64[5] {
  %ar = (f64[5]{0}, /*index=1*/pred[3]{0}) all-reduce(%a, %b), replica_groups=mesh['x'=2,'y'=8] {'y'}, to_apply=%add
  %s = (f32[2]{0}, f32[16]{0}) all-gather-start(%z), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  %d = f32[16]{0} all-gather-done(%s)
  %cp = f32[10]{0} collective-permute(%d), source_target_pairs={{0,1},{1,2},{2,0}}
  %w = (s32[]) while(%t0), condition=%c, body=%unknown
  ROOT %r = f64[5]{0} get-tuple-element(%ar), index=0
}
"""


def test_a_text_with_known_answers():
    """Bytes by type, groups in three notations, loops of known length as often as they turn, starts but not dones."""
    found = {each.kind + str(i): each for i, each in enumerate(collectives(TEXT))}
    assert [(each.kind, each.size, each.devices, each.times) for each in found.values()] == [
        ("all-reduce", 5 * 8 + 3, 8, 1),
        ("all-gather", 64, 8, 1),
        ("collective-permute", 40, 3, 1),
        ("reduce-scatter", 32, 4, 1),
        ("all-gather", 128, 2, 3),
    ]


@pytest.mark.parametrize(
    ("kind", "moved"),
    # A ring of four, a result of 100 bytes on each: what passes through one device's link.
    [
        ("all-reduce", 150),
        ("all-gather", 75),
        ("reduce-scatter", 300),
        ("all-to-all", 75),
        ("collective-permute", 100),
    ],
)
def test_bytes_through_one_link_of_a_ring(kind, moved):
    assert Collective(kind, 100, 4, 1, "").moved == moved
    assert Collective(kind, 100, 4, 3, "").moved == 3 * moved


def test_the_reader_agrees_with_an_all_reduce_of_known_size():
    sharding = jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec("data"))
    rows = jax.device_put(np.ones((16, 24), np.float32), sharding)
    everywhere = jax.sharding.NamedSharding(MESH, jax.sharding.PartitionSpec())
    text = jax.jit(lambda a: a.sum(axis=0), out_shardings=everywhere).lower(rows).compile().as_text()
    assert [(each.kind, each.size, each.devices) for each in collectives(text)] == [("all-reduce", 24 * 4, 8)]


@pytest.mark.slow
@pytest.mark.parametrize("method", pod.SOLVERS)
def test_what_a_step_moves(method):
    """Data parallel: sums like y alone, and nothing is gathered, of y or of x, which lies with its examples.
    With y split: gathered layer by layer, never whole, and no more sums than before."""
    counts = {layout: pod.counted(method, layout, MESH) for layout in pod.LAYOUTS}
    alone, found = counts["data parallel"]
    formula = pod.FORMULAS[method, "data parallel"]
    assert {each.kind for each in found} == {"all-reduce"}
    # The derivative of hᵀδ is ḣᵀδ + hᵀδ̇, and each term is summed on its own.
    assert alone.reduced == pytest.approx(formula.reduced + (method != "ITD"), abs=0.1)
    split, found = counts["y split too"]
    _, _, y0, _ = pod.task()
    one_matrix = y0["in"][0].nbytes
    assert max(each.size for each in found if each.kind == "all-gather") == one_matrix
    assert split.gathered == pytest.approx(pod.FORMULAS[method, "y split too"].gathered, abs=0.1)
    assert split.reduced <= alone.reduced + 0.1


@pytest.mark.slow
def test_minibatches_gather_neither_x_nor_the_data():
    """x[rows] of rows drawn from everywhere: messages of the batch's size, not of x's or the data's."""
    rows = 512
    data = bl.epochs(nets.batch(rows), size=bl.Batch(inner=16, outer=8))
    text = pod.compiled_step(
        bl.itd(nets.of_rows, inner=0.1, outer=0.1), *nets.start(rows), data, bl.sharded(MESH)
    )
    found = collectives(text)
    gathers = [each.size for each in found if each.kind == "all-gather"]
    assert max(gathers) <= 16 * nets.WIDTH * 8
    y_bytes = sum(leaf.nbytes for leaf in nets.start(rows)[1].values())
    assert max(each.size for each in found) <= 2 * y_bytes + 16 * (nets.WIDTH + 3) * 8
