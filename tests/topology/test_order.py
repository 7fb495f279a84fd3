from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.topology.order import cycles_in, is_upstream, topological_order

Graph = dict[int, list[int]]

any_graph: st.SearchStrategy[Graph] = st.integers(0, 8).flatmap(
    lambda size: st.fixed_dictionaries(
        {item: st.lists(st.integers(0, size - 1), unique=True, max_size=3) for item in range(size)}
    )
)


@st.composite
def acyclic_graphs(draw: st.DrawFn) -> tuple[list[int], Graph]:
    """Items in a random order, each with upstreams among the smaller ones."""
    size = draw(st.integers(0, 8))
    items = draw(st.permutations(range(size)))
    upstreams = {item: draw(st.lists(st.sampled_from(range(item)), unique=True)) for item in range(1, size)}
    return items, {0: [], **upstreams}


@given(acyclic_graphs())
def test_everything_comes_once_and_after_its_upstreams(graph: tuple[list[int], Graph]) -> None:
    items, upstreams = graph
    order = topological_order(items, upstreams)
    assert sorted(order) == sorted(items)
    position = {item: index for index, item in enumerate(order)}
    assert all(position[upstream] < position[item] for item in items for upstream in upstreams[item])
    assert cycles_in(items, upstreams) == []


@given(st.lists(st.integers(), unique=True))
def test_what_hangs_on_nothing_keeps_its_order(items: list[int]) -> None:
    assert topological_order(items, {item: [] for item in items}) == tuple(items)


@given(acyclic_graphs())
def test_an_item_waits_only_for_its_upstreams(graph: tuple[list[int], Graph]) -> None:
    """Of two neighbours in the order that are out of the given order, the later one reads the earlier."""
    items, upstreams = graph
    order = topological_order(items, upstreams)
    for earlier, later in pairwise(order):
        if items.index(earlier) > items.index(later):
            assert earlier in upstreams[later]


@given(any_graph)
def test_cycles_are_ways_that_lead_back(upstreams: Graph) -> None:
    cycles = cycles_in(list(upstreams), upstreams)
    for cycle in cycles:
        assert len(set(cycle)) == len(cycle)
        for item, downstream in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
            assert item in upstreams[downstream]
    seen = [item for cycle in cycles for item in cycle]
    assert len(seen) == len(set(seen))


@given(any_graph)
def test_a_graph_has_cycles_or_an_order(upstreams: Graph) -> None:
    if not cycles_in(list(upstreams), upstreams):
        assert len(topological_order(list(upstreams), upstreams)) == len(upstreams)


@given(any_graph, st.data())
def test_upstream_means_a_way_down(upstreams: Graph, data: st.DataObject) -> None:
    if not upstreams:
        return
    item, other = (data.draw(st.sampled_from(sorted(upstreams))) for _ in range(2))
    reached, grew = {other}, True
    while grew:
        above = {upstream for one in reached for upstream in upstreams[one]}
        grew = not above <= reached
        reached |= above
    assert is_upstream(item, other, upstreams) == (item in reached)
