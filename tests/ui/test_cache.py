"""The cache makes each value once, drops the heaviest load first, and a slow value delays no other."""

from __future__ import annotations

import threading

import pytest

from fedarena.ui.cache import FileCache


def test_a_value_is_made_again_only_when_its_stamp_has_changed() -> None:
    memo: FileCache[list[int]] = FileCache()
    assert memo.get("a", 1, lambda before: [*(before or []), 1]) == [1]
    assert memo.get("a", 1, lambda before: pytest.fail("it is known")) == [1]
    assert memo.get("a", 2, lambda before: [*(before or []), 2]) == [1, 2]
    assert memo.get("b", 2, lambda before: [*(before or []), 3]) == [3]


def test_an_error_is_raised_and_not_kept() -> None:
    memo: FileCache[int] = FileCache()
    with pytest.raises(ZeroDivisionError):
        memo.get("a", 1, lambda before: 1 // 0)
    assert memo.get("a", 1, lambda before: 5) == 5


def test_what_was_used_last_is_kept_up_to_a_total_weight() -> None:
    memo: FileCache[str] = FileCache(10, len)
    for key in "abc":
        memo.get(key, 1, lambda before, key=key: key * 4)  # type: ignore[misc]
    assert memo.get("c", 1, lambda before: "made again") == "cccc"
    assert memo.get("b", 1, lambda before: "made again") == "bbbb"
    assert memo.get("a", 1, lambda before: "aa") == "aa"
    nothing: FileCache[str] = FileCache(0)
    assert nothing.get("a", 1, lambda before: "x") == "x"
    assert nothing.get("a", 1, lambda before: "y") == "y"


@pytest.mark.parametrize("fails", [False, True])
def test_requests_that_come_together_share_one_making_and_others_go_on(fails: bool) -> None:
    memo: FileCache[int] = FileCache()
    begun, go_on, made, found = threading.Event(), threading.Event(), [], []

    def make(before: int | None) -> int:
        begun.set()
        assert go_on.wait(30)
        made.append(1)
        if fails:
            raise ValueError("no")
        return 7

    def ask() -> None:
        try:
            found.append(memo.get("slow", 1, make))
        except ValueError:
            found.append(-1)

    threads = [threading.Thread(target=ask) for _ in range(50)]
    for thread in threads:
        thread.start()
    assert begun.wait(30)
    assert memo.get("other", 1, lambda before: 3) == 3
    go_on.set()
    for thread in threads:
        thread.join()
    assert fails or made == [1]
    assert found == [-1 if fails else 7] * 50
