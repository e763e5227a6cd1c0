from router.doctor.hashes import document, lines, sharing
from sim.cache_replay import InfiniteCache, replayed


def fraction(prompts, replicas):
    return replayed(prompts, 16, [InfiniteCache() for _ in range(replicas)]).hit_fraction


def test_what_ids_tell():
    prompts = [(16 * 4 + 1, [0, 1, 100 + number, 200 + number]) for number in range(10)]
    found = sharing(prompts, 16, fraction)
    assert found.head_blocks == 2
    assert found.first_block_fraction == 1.0
    assert found.parting_blocks == (2, 2, 2)
    assert found.once_fraction == 20 / 22
    hits = dict(found.hits)
    assert hits[1] > hits[4] > hits[16] == 0
    assert document(found)["head_blocks"] == 2
    assert "needs" not in "\n".join(lines(found))
    assert "without text" in "\n".join(lines(found))


def test_nothing_without_full_blocks():
    assert sharing([(3, [])], 16, fraction) is None
