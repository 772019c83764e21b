"""`pytest --fast`: every test that starts neither Blender nor a training, cluster or browser.

No list names these tests. A test is left out at the moment when it begins such a thing, wherever
it lies and whatever it is called: it is reported as skipped, with the reason. Imports of Blender
and the like are noticed in the processes that a test starts, too. A test that does none of this
and still takes seconds is marked with `@pytest.mark.slow`, or listed below by its name.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

#: Modules that no fast test loads, and what loading them means.
HEAVY = {
    "bpy": "starts Blender",
    "lightning_fabric": "trains",
    "mkdocs": "builds the site",
    "ray": "starts a cluster",
}
#: What no fast test starts: how its command line is known, and what it means.
PROGRAMS = (
    ("executors/child.py", "starts render processes"),
    ("torchrun", "trains"),
    ("torch.distributed.run", "trains"),
    ("chromedriver", "starts a browser"),
    ("3dident ", "runs a command in a process of its own"),
    ("-m threedident ", "runs a command in a process of its own"),
    ("benchmarks/run.py", "runs benchmarks"),
    ("benchmarks/gpu.py", "runs benchmarks"),
)
#: Tests that take seconds of a processor, by the name of their function.
SLOW = {
    "test_a_buffer_is_not_used_again_while_somebody_holds_it",
    "test_a_compiled_encoder_learns_the_same",
    "test_a_damaged_model_is_read_or_refused_with_an_error_of_ours",
    "test_a_decoder_is_kept_while_it_fits_and_made_anew_where_it_does_not",
    "test_a_factory_writes_nowhere_but_in_its_scratch_folder",
    "test_a_frequent_class_does_not_count_more",
    "test_a_grid_is_measured_by_its_transition",
    "test_a_mangled_pickle_is_read_or_refused_with_an_error_of_ours",
    "test_a_smoke_run_on_drawn_images",
    "test_a_vae_learns_its_images_and_leaves_torchs_random_numbers_alone",
    "test_all_variants_of_the_losses_benchmark_compute_the_same",
    "test_an_evaluation_says_what_it_drew_and_takes_its_embeddings_back",
    "test_an_evaluation_that_is_killed_leaves_no_process",
    "test_an_export_that_differs_is_refused",
    "test_an_exported_encoder_gives_torchs_codes_to_an_evaluation",
    "test_an_interrupted_script_does_not_go_on",
    "test_an_old_leaderboard_is_listed_shown_and_checked",
    "test_aninfonce_is_the_papers_and_differs_from_the_published_code_as_said",
    "test_any_graph_is_legible_and_has_its_edges",
    "test_any_values_within_range_can_be_drawn_and_become_scene_rows",
    "test_approximate_search_finds_nearly_all",
    "test_code_that_is_trusted_runs_and_what_it_starts_ends_with_it",
    "test_codes_in_a_file_are_scored_without_torch",
    "test_constant_factors_and_codes_are_left_out",
    "test_continuous_factors_have_the_mcc_alone",
    "test_dci",
    "test_dci_agrees_with_disentanglement_lib",
    "test_descriptions_come_back_from_json",
    "test_every_built_in_model_survives_plain_data_and_draws",
    "test_every_form_becomes_every_other",
    "test_every_form_can_be_packed",
    "test_every_form_carries_them_and_comes_back",
    "test_every_form_opens_by_its_content_and_reads_in_any_order",
    "test_every_module_of_the_installed_wheel_imports",
    "test_every_shape_is_consistently_wound",
    "test_exact_pairs_are_as_wide_as_matched_ones_where_a_study_says_so",
    "test_exact_pairs_need_no_extra_and_matching_says_what_to_install",
    "test_export_gives_one_file_with_torchs_codes",
    "test_factories_that_do_not_fit",
    "test_fidelity_to_converged_blender_renders",
    "test_float32_is_accurate",
    "test_frames_are_later_in_the_same_sequence",
    "test_grey_images_have_the_augmentations_that_change_them",
    "test_guesses_of_a_new_user_work",
    "test_how_many_factors_change",
    "test_information_and_classifiers_agree_with_disentanglement_lib",
    "test_intervals_are_of_the_score_at_this_many_samples",
    "test_intervals_cover_the_known_r2_of_a_gaussian_regression",
    "test_intervals_hold_the_score_where_the_fit_is_held",
    "test_it_outlives_the_thread_that_asked_first",
    "test_it_says_what_it_takes_before_it_gets_an_image",
    "test_its_figure_is_saved",
    "test_kept_memory_writes_a_row_for_each_way",
    "test_kernels_round_alike_just_compiled_and_from_the_cache",
    "test_latents_that_were_drawn_once_come_in_pairs_as_those_of_images_do",
    "test_metrics_of_values_are_refused_before_anything_is_encoded",
    "test_non_linear_regression_sees_what_a_linear_one_does_not",
    "test_nothing_but_our_own_errors_comes_out",
    "test_of_a_sample_they_are_those_of_the_grid",
    "test_old_scores_come_out_again",
    "test_one_that_dies_between_requests_is_started_again",
    "test_one_that_loops_is_stopped_started_again_and_given_up",
    "test_onnx_that_never_returns",
    "test_other_choices_of_dci",
    "test_pairs_of_a_gpu_are_those_of_a_cpu",
    "test_partners_follow_the_conditional",
    "test_partners_follow_the_truncated_conditional",
    "test_partners_of_a_given_point_follow_the_truncated_conditional",
    "test_partners_of_all_latents_are_those_that_resampling_draws",
    "test_probabilities_sum_to_one_and_draws_have_some",
    "test_rates_of_datasets",
    "test_reference_encoders_are_the_same_on_both",
    "test_resampled_pairs_follow_the_weights_around_the_nearest_image",
    "test_sap_and_dci_agree_with_their_definitions",
    "test_scripts_need_no_guard",
    "test_small_maps_give_what_convolutions_give",
    "test_sprites_are_written_and_looked_at",
    "test_the_best_score_is_what_the_colours_leave",
    "test_the_best_score_of_a_hue_that_is_not_wrapped_down_to_a_whole_turn",
    "test_the_checkout_works_without_being_installed",
    "test_the_command_shows_both_sets_side_by_side",
    "test_the_cross_entropy_with_a_laplace_density_is_its_integral",
    "test_the_dataset_itself_must_be_given_where_nothing_stands_in_for_it",
    "test_the_gimbal_lock_shows",
    "test_the_order_and_the_names_of_values_do_not_matter",
    "test_the_page_opens_without_the_train_extra",
    "test_the_page_without_its_server",
    "test_the_realised_spread_of_exact_and_dense_latents",
    "test_the_same_inputs_give_the_same_bytes_on_any_number_of_threads",
    "test_the_same_inputs_give_the_same_scores",
    "test_the_shapes_have_one_area_and_their_centre_in_the_middle",
    "test_the_stand_ins_are_closed_smooth_and_as_large_as_the_teapot",
    "test_the_study_reads_out_of_its_runs",
    "test_threads_here_and_in_forked_processes",
    "test_torch_files_give_their_codes",
    "test_what_looks_alike_is_equal_in_each_pixel",
    "test_what_the_engine_cannot_do",
    "test_without_a_name_it_lists_the_models",
    "test_worker_processes_give_the_same_batches",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--fast", action="store_true", help="no Blender, training, cluster, browser or slow test"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker, and with the option the plugin."""
    config.addinivalue_line("markers", "slow: takes seconds; `pytest --fast` leaves it out")
    if config.getoption("fast"):
        config.pluginmanager.register(FastTests(), "fast")
        # A test that is left out midway may leave something open; `make test` looks for that.
        config.addinivalue_line("filterwarnings", "ignore::ResourceWarning")
        config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnraisableExceptionWarning")


def is_slow(item: pytest.Item) -> bool:
    """Whether a test is marked or listed as slow."""
    name = getattr(item, "originalname", item.name)
    return name in SLOW or item.get_closest_marker("slow") is not None


class FastTests:
    """The plugin of `--fast`, one in each process of pytest.

    Attributes:
        reason: why the test that runs is left out; None while it is not.
        watching: whether a test runs: what is loaded when tests are collected does not count.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.watching = False
        self._owner = os.getpid()
        self._folder = tempfile.TemporaryDirectory(prefix="threedident-fast-")
        self._notes = Path(self._folder.name) / "notes"
        self._notes.touch()
        os.environ["THREEDIDENT_FAST"] = f"{self._notes}:{','.join(HEAVY)}"
        path = str(Path(__file__).with_name("fast_children"))
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = path if not before else f"{path}{os.pathsep}{before}"
        sys.addaudithook(self._watch)

    def _watch(self, event: str, arguments: Sequence[Any]) -> None:
        """Leave the running test out where it begins what is too much for a fast one."""
        if not self.watching:
            return
        if event == "import" and arguments[0] in HEAVY:
            self.leave_out(HEAVY[arguments[0]])
        elif event == "subprocess.Popen":
            words = arguments[1]
            line = words if isinstance(words, str) else shlex.join(map(os.fsdecode, words))
            for name, reason in PROGRAMS:
                if name in f"{line} ":
                    self.leave_out(reason)

    def leave_out(self, reason: str) -> None:
        """Skip the running test."""
        if os.getpid() != self._owner:  # a fork of pytest: its parent reads why it ends
            self._notes.write_text(f"{reason}\n")
            raise RuntimeError(f"pytest --fast: {reason}")
        self.reason = reason
        pytest.skip(reason)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.reason = None
        self._guard_training()
        self.watching = True
        try:
            return (yield)
        finally:
            self.watching = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if notes := self._notes.read_text().splitlines():  # a process of the test said so
            self._notes.write_text("")
            self.reason = HEAVY.get(notes[0], notes[0])
        if self.reason and report.when == "teardown":
            report.outcome, report.longrepr = "passed", None
        elif self.reason:
            report.outcome = "skipped"
            report.longrepr = (str(Path(__file__)), 1, f"Skipped: {self.reason}")
        return report

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        config.hook.pytest_deselected(items=[item for item in items if is_slow(item)])
        items[:] = [item for item in items if not is_slow(item)]

    def _guard_training(self) -> None:
        """Leave out whoever makes a Fabric, with which all trainings begin."""
        fabric = getattr(sys.modules.get("lightning_fabric"), "Fabric", None)
        if fabric is None or hasattr(fabric, "left_to"):
            return
        made, fabric.left_to = fabric.__init__, self

        def make(fabric_: Any, *arguments: Any, **options: Any) -> None:
            if self.watching:
                self.leave_out("trains")
            made(fabric_, *arguments, **options)

        fabric.__init__ = make
