"""An encoder that stays loaded: what it answers, and what it cannot do to whoever asks it."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
from helpers.submissions import (
    AXES,
    MARK,
    SIDE,
    can_have_namespaces,
    dividing,
    externally,
    filling_memory,
    looping,
    mean_nodes,
    running,
    save_onnx,
    scaled,
    weight,
)
from onnx import TensorProto, helper

from threedident.errors import UsageError
from threedident.evaluate.runner import session as module
from threedident.evaluate.runner.process import Limits
from threedident.evaluate.runner.session import EncoderSession
from threedident.evaluate.submissions.submission import identify
from threedident.system import is_running

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")

IMAGES = np.random.default_rng(0).integers(0, 256, (6, SIDE, SIDE, 3), np.uint8)
MEANS = IMAGES.mean((1, 2), dtype=np.float64)


def live(path, *, trust=False, **limits):
    limits = {"time": 60.0, "memory": 6.0, **limits}
    return EncoderSession(identify(path, trust=trust), Limits(**limits), threads=1)


def means(tmp_path, **options):
    return save_onnx(tmp_path / "means.onnx", mean_nodes(), initializers=[AXES], **options)


def test_it_encodes_as_often_as_one_likes_in_one_process(tmp_path):
    with live(means(tmp_path)) as session:
        assert session.pid is None
        got = session.encode(IMAGES)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, MEANS, rtol=1e-6)
        pid = session.pid
        for start in range(5):
            one = session.encode(IMAGES[start : start + 1])
            np.testing.assert_allclose(one, MEANS[start : start + 1], rtol=1e-6)
        np.testing.assert_array_equal(session.encode(IMAGES.transpose(0, 3, 1, 2)), got)
        assert session.pid == pid
    assert not is_running(pid)


def test_it_outlives_the_thread_that_asked_first(tmp_path):
    """The system ends a sandboxed process with the thread that has started it."""
    with live(means(tmp_path)) as session:
        thread = threading.Thread(target=session.encode, args=(IMAGES,))
        thread.start()
        thread.join()
        pid = session.pid
        time.sleep(0.3)
        session.encode(IMAGES)
        assert session.pid == pid


def test_it_says_what_it_takes_before_it_gets_an_image(tmp_path):
    with live(means(tmp_path)) as session:
        account = session.account()
        assert account.takes == (3, None, None)
        assert account.network_blocked is can_have_namespaces()
    source = helper.make_tensor_value_info("images", TensorProto.UINT8, ["B", 3, 24, 20])
    with live(means(tmp_path, source=source)) as session:
        assert session.account().takes == (3, 24, 20)
        with pytest.raises(UsageError, match=r"takes .*'B', 3, 24, 20., but"):
            session.encode(IMAGES)
        assert session.encode(np.zeros((1, 24, 20, 3), np.uint8)).shape == (1, 3)


def test_images_of_another_size_start_it_anew(tmp_path):
    with live(means(tmp_path)) as session:
        session.encode(IMAGES)
        pid = session.pid
        np.testing.assert_allclose(
            session.encode(IMAGES[:, :8]), IMAGES[:, :8].mean((1, 2)), rtol=1e-5
        )
        assert session.pid != pid


def test_the_limit_of_time_is_of_each_request(tmp_path):
    with live(means(tmp_path), time=5) as session:
        session.encode(IMAGES)
        pid = session.pid
        session._process._deadline = 0  # of the request before
        session.encode(IMAGES)
        assert session.pid == pid


def test_one_that_loops_is_stopped_started_again_and_given_up(tmp_path):
    with live(looping(tmp_path / "loops.onnx"), time=1) as session:
        for _ in range(module.MOST_FAILURES):
            with pytest.raises(UsageError, match=r"^loops\.onnx was stopped after 1 s$"):
                session.encode(IMAGES)
            assert session.pid is None
            assert running(os.environ[MARK]) == []
        with pytest.raises(
            UsageError, match=r"after 1 s\. It has failed 3 times on end and is not"
        ):
            session.encode(IMAGES)


def test_one_that_takes_all_memory_is_stopped(tmp_path):
    with (
        live(filling_memory(tmp_path / "fills.onnx"), memory=3) as session,
        pytest.raises(UsageError, match=r"needs more than the 3 GB of memory it may use"),
    ):
        session.encode(IMAGES)


def test_codes_that_are_not_finite_are_refused_and_the_process_goes_on(tmp_path):
    black = np.zeros_like(IMAGES)
    with live(dividing(tmp_path / "nan.onnx")) as session:
        for _ in range(module.MOST_FAILURES + 2):
            with pytest.raises(UsageError, match="codes of image 40 are not finite"):
                session.encode(black, 40)
        pid = session.pid
        assert (session.encode(IMAGES) == 1).all()
        assert session.pid == pid


@pytest.mark.parametrize(
    ("nodes", "weights", "said"),
    [
        (mean_nodes("z_hat")[:1], [], "returns tensor|returned an array of shape"),
        (
            [*mean_nodes("m"), helper.make_node("Slice", ["m", "one", "two"], ["z_hat"])],
            [AXES, weight("one", np.array([0])), weight("two", np.array([1]))],
            "gave 1 rows for 6 images",
        ),
    ],
    ids=["four dimensions", "one row"],
)
def test_nonsense_shapes_are_refused(tmp_path, nodes, weights, said):
    if len(nodes) == 1:
        nodes = [helper.make_node("Cast", ["images"], ["z_hat"], to=TensorProto.FLOAT)]
    path = save_onnx(
        tmp_path / "odd.onnx",
        nodes,
        initializers=weights,
        target=helper.make_tensor_value_info("z_hat", TensorProto.FLOAT, None),
    )
    with live(path) as session, pytest.raises(UsageError, match=said):
        session.encode(IMAGES)


def test_another_number_of_codes_is_refused(tmp_path):
    """The codes of an image are its columns: as many as the image is wide."""
    nodes = [
        helper.make_node("Cast", ["images"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats", "axes"], ["z_hat"], keepdims=0),
    ]
    path = save_onnx(tmp_path / "wide.onnx", nodes, initializers=[weight("axes", np.array([1, 2]))])
    with live(path) as session:
        assert session.encode(IMAGES).shape == (6, SIDE)
        with pytest.raises(UsageError, match="gave 16 codes before and 8 now"):
            session.encode(IMAGES[:, :, :8])


def test_weights_outside_of_its_folder_are_not_read(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(12))
    (tmp_path / "inside").mkdir()
    with live(scaled(tmp_path / "inside" / "sly.onnx", externally("../secret"))) as session:
        for ask in (session.account, lambda: session.encode(IMAGES)):
            with pytest.raises(UsageError, match="outside of its folder, which is not read"):
                ask()


@pytest.mark.usefixtures("factories")
def test_code_that_is_trusted_runs_and_what_it_starts_ends_with_it(tmp_path):
    with live("mine:writes_scratch", trust=True) as session:
        assert session.account().takes == (None, None, None)
        assert session.encode(IMAGES).shape == (6, 3)
    if can_have_namespaces():
        with live("mine:stays", trust=True) as session:
            session.encode(IMAGES)


@pytest.mark.usefixtures("factories")
def test_one_that_dies_between_requests_is_started_again(tmp_path):
    with live("mine:writes_scratch", trust=True) as session:
        session.encode(IMAGES)
        pid = session.pid
        os.kill(pid, 9)
        while not session._process.ended:
            time.sleep(0.01)
        np.testing.assert_allclose(session.encode(IMAGES), MEANS, rtol=1e-5)
        assert session.pid != pid


@pytest.mark.usefixtures("factories")
def test_closing_ends_a_request_in_the_middle(tmp_path):
    session = live("mine:sleeps", trust=True)
    said = []

    def ask():
        try:
            session.encode(IMAGES)
        except UsageError as error:
            said.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    while not running(os.environ[MARK]):
        time.sleep(0.02)
    session.close()
    thread.join(20)
    assert said == ["mine:sleeps: its session has ended"]
    with pytest.raises(UsageError, match="its session has ended"):
        session.encode(IMAGES)
    session.close()


def test_what_is_no_encoder_is_refused(tmp_path):
    np.save(tmp_path / "codes.npy", np.zeros((3, 2), np.float32))
    for each in (tmp_path / "codes.npy", "reference:random"):
        with pytest.raises(UsageError, match="is no encoder that runs in a process of its own"):
            EncoderSession(identify(each))


def test_what_are_no_images_is_refused(tmp_path):
    with live(means(tmp_path)) as session:
        for wrong in (IMAGES.astype(np.float32), IMAGES[0], IMAGES[:0], IMAGES[..., :2]):
            with pytest.raises(UsageError, match="expected images"):
                session.encode(wrong)
        assert session.pid is None
