"""The board: what was written is there, what was not is an error."""

import pytest
import torch

from plangym_like.batchers.workspaces import Workspace
from plangym_like.errors import InputError


def _numbered(time_size: int = 5, batch_size: int = 3) -> Workspace:
    workspace = Workspace()
    for t in range(time_size):
        workspace.set("x", t, 10 * t + torch.arange(batch_size))
        workspace.set("y", t, torch.full((batch_size, 2), t, dtype=torch.uint8))
    return workspace


def _done(*times: tuple[int, ...]) -> Workspace:
    """Return a numbered workspace in which column b ends episodes at ``times[b]``."""
    workspace = _numbered(6, len(times))
    flags = [[t in column for column in times] for t in range(6)]
    workspace.set_full("env/done", torch.tensor(flags))
    return workspace


def test_rows_and_wholes_are_two_views() -> None:
    workspace = _numbered()
    assert workspace["x"].tolist() == [[10 * t, 10 * t + 1, 10 * t + 2] for t in range(5)]
    assert workspace["y"].shape == (5, 3, 2) and workspace["y"].dtype == torch.uint8
    assert workspace.get("x", 3).tolist() == [30, 31, 32]
    workspace.set("x", 3, torch.tensor([7, 8, 9]))
    workspace.set("x", 5, torch.tensor([1, 1, 1]))
    assert workspace["x"][3:].tolist() == [[7, 8, 9], [40, 41, 42], [1, 1, 1]]
    x, y = workspace["x", "y"]
    assert len(x) == 6 and len(y) == 5
    assert list(workspace.keys()) == list(workspace.variables) == ["x", "y"]
    assert "x" in workspace and "z" not in workspace


def test_rows_that_nobody_wrote_are_errors() -> None:
    workspace = _numbered()
    workspace.set("gap", 2, torch.zeros(3))
    for refused in (
        lambda: workspace.get("x", 5),
        lambda: workspace.get("x", -1),
        lambda: workspace.get("gap", 0),
        lambda: workspace["gap"],
        lambda: workspace["nowhere"],
        lambda: workspace.set("x", -1, torch.zeros(3, dtype=torch.int64)),
        lambda: workspace.remove_variable("nowhere"),
    ):
        with pytest.raises(InputError, match="'x'|'gap'|'nowhere'"):
            refused()
    assert workspace.get("gap", 2).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "row",
    [
        torch.zeros(3),
        torch.zeros(2, dtype=torch.int64),
        torch.zeros(3, 1, dtype=torch.int64),
        torch.tensor(1),
    ],
)
def test_rows_of_one_variable_are_alike(row: torch.Tensor) -> None:
    workspace = _numbered()
    with pytest.raises(InputError, match="'x'"):
        workspace.set("x", 5, row)
    assert workspace.time_size() == 5
    with pytest.raises(InputError):
        workspace.set_full("x", torch.tensor(3.0))


def test_sizes_are_shared_or_an_error() -> None:
    workspace = _numbered()
    assert (workspace.time_size(), workspace.batch_size()) == (5, 3)
    assert (Workspace().time_size(), Workspace().batch_size()) == (0, 0)
    workspace.set("x", 5, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(InputError, match="x 6, y 5"):
        workspace.time_size()
    with pytest.raises(InputError, match="x 6, y 5"):
        workspace.copy_n_last_steps(1)
    workspace.set_full("x", torch.zeros(5, 2))
    with pytest.raises(InputError, match="x 2, y 3"):
        workspace.batch_size()


def test_gradients_flow_and_are_cut() -> None:
    weight = torch.ones(3, requires_grad=True)
    workspace = Workspace()
    for t in range(3):
        workspace.set("x", t, (t + 1) * weight)
    workspace["x"].sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [6.0, 6.0, 6.0]
    workspace.zero_grad()
    assert not workspace["x"].requires_grad and not workspace.get("x", 0).requires_grad


def test_an_epoch_begins_with_the_last_steps_and_nothing_else() -> None:
    workspace = _numbered()
    workspace.copy_n_last_steps(2)
    assert workspace["x"].tolist() == [[30, 31, 32], [40, 41, 42]]
    workspace.copy_n_last_steps(1, ["y"])
    assert list(workspace.keys()) == ["y"] and workspace["y"][0, 0].tolist() == [4, 4]
    for wrong in (0, 2):
        with pytest.raises(InputError, match="cannot keep the last"):
            workspace.copy_n_last_steps(wrong)


def test_rewinding_forgets_the_other_course() -> None:
    workspace = _numbered()
    workspace["x"]
    workspace.rewind(3)
    assert workspace.time_size() == 3
    workspace.begin_step()
    workspace.set("y", 2, torch.ones(3, 2, dtype=torch.uint8))
    workspace.rewind(2)
    workspace.end_step()
    assert len(workspace["x"]) == 2 and len(workspace["y"]) == 3
    workspace.rewind(0)
    assert not workspace.keys()


def test_transitions_in_the_order_of_time() -> None:
    transitions = _done((2,), (), (1, 4)).get_transitions()
    steps = [[0, 1, 2], [0, 1], [1, 2], [0, 1, 2], [0, 1]]
    starts = [10 * t + b for t, lanes in enumerate(steps) for b in lanes]
    starts = [s for s in starts if s not in (12, 20, 42)]
    assert transitions["x"][0].tolist() == [0, 1, 2, 10, 11, 21, 22, 30, 31, 32, 40, 41]
    assert transitions["x"][1].tolist() == [x + 10 for x in transitions["x"][0].tolist()]
    assert transitions["y"].shape == (2, 12, 2) and transitions["y"].dtype == torch.uint8
    assert transitions["env/done"][1].sum() == 3
    assert not transitions["env/done"][0].any()


def test_parts_along_time() -> None:
    workspace = _numbered()
    assert workspace.subtime(1, 3)["x"].tolist() == [[10, 11, 12], [20, 21, 22]]
    assert workspace.get_time_truncated("x", 3, 9).shape == (2, 3)
    workspace.set("x", 5, torch.zeros(3, dtype=torch.int64))
    assert workspace.get_time_truncated("x", 4, 6).tolist() == [[40, 41, 42], [0, 0, 0]]
    part = workspace.get_time_truncated_workspace(4, 6)
    assert len(part["x"]) == 2 and len(part["y"]) == 1
    with pytest.raises(InputError):
        workspace.get_time_truncated("x", 2, 2)
    windows = _numbered().select_subtime(torch.tensor([0, 3, 1]), 2)
    assert windows["x"].tolist() == [[0, 31, 12], [10, 41, 22]]
    with pytest.raises(InputError, match="windows"):
        _numbered().select_subtime(torch.tensor([0, 4, 1]), 2)
    workspace = _numbered()
    workspace.copy_time(3, 0, 2)
    workspace.copy_time(0, 5, 1, ["x"])
    assert workspace["x"][:, 0].tolist() == [30, 40, 20, 30, 40, 30] and len(workspace["y"]) == 5


def test_parts_along_the_batch() -> None:
    workspace = _numbered()
    assert workspace.select_batch(torch.tensor([2, 0]))["x"][1].tolist() == [12, 10]
    assert workspace.select_batch_n(7).batch_size() == 7
    both = Workspace.cat_batch([workspace, workspace.select_batch(torch.tensor([1]))])
    assert both["x"][4].tolist() == [40, 41, 42, 41] and both["y"].shape == (5, 4, 2)
    with pytest.raises(InputError, match="no workspaces"):
        Workspace.cat_batch([])
    with pytest.raises(InputError, match="workspace 1 2"):
        Workspace.cat_batch([workspace, workspace.subtime(0, 2)])


def test_copies_share_nothing_with_their_source() -> None:
    workspace = _numbered()
    copy = Workspace(workspace)
    copy["x"].zero_()
    assert workspace["x"].sum() > 0
    moved = workspace.to("cpu").contiguous()
    assert moved["x"].equal(workspace["x"])
    moved.clear("x")
    assert list(moved.keys()) == ["y"]
    moved.clear()
    assert not moved.keys() and workspace.time_size() == 5


def test_a_variable_without_a_batch_dimension() -> None:
    workspace = Workspace()
    workspace.set_full("loss", torch.tensor([3.0, 2.0]))
    workspace.set("loss", 2, torch.tensor(1.0))
    assert workspace["loss"].tolist() == [3.0, 2.0, 1.0]
    assert workspace.time_size() == 3 and not workspace.is_shared
    assert "batch_size = None" in repr(workspace)
    for use in (
        workspace.batch_size,
        lambda: workspace.select_batch(torch.tensor([0])),
        lambda: Workspace.cat_batch([workspace, workspace]),
    ):
        with pytest.raises(InputError, match="'loss' was set to a tensor"):
            use()
    with pytest.raises(InputError, match="without axes"):
        workspace.set_full("loss", torch.tensor(1.0))
