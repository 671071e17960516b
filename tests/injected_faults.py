#!/usr/bin/env python3
"""Breaks the library in one place after the other and checks that a test fails each time.

    tests/injected_faults.py [--only NAME] <tree> <build folder>
    tests/injected_faults.py --check <tree>

Each fault replaces some text of one source file, builds the test programs and runs them until one fails.
A fault that no program notices means that tests are missing: such a run ends with 1. Afterwards the
tests that failed run once more without any fault and must pass, because a test that always fails
notices nothing. `make injected-faults` calls this on a copy of the tree: files of <tree> are edited, and
restored however the run ends. --check only looks whether every fault has its place in the sources.
"""

import argparse
import dataclasses
import pathlib
import re
import subprocess
import sys
import time

_PROGRAMS = ("optim_test", "zero_test", "equivalence_test", "core_test")
_LIMIT_S = 900  # per program; a program that hangs has also noticed the fault


@dataclasses.dataclass(frozen=True)
class Fault:
    """`before` occurs in `file` exactly once."""

    name: str
    file: str
    before: str
    after: str
    programs: tuple[str, ...] = _PROGRAMS


_FAULTS = (
    # A gradient is read from where the segment before it begins.
    Fault("wrong_slice", "optim/slices/cpu_elementwise.cc",
          "gradients + at,", "gradients + (i == 0 ? at : segments[i - 1].buffer_offset),"),
    # A parameter that another rank's slice begins is not updated in this one.
    Fault("skipped_update", "optim/slices/cpu_elementwise.cc",
          "    if (used[segment.parameter] == 0) continue;\n    const size_t group",
          "    if (used[segment.parameter] == 0 || segment.parameter_offset > 0) continue;\n"
          "    const size_t group"),
    # The all-gather of updates takes the values of the rank at the opposite end.
    Fault("swapped_ranks", "zero/parameters/parameter_all_gather.cc",
          "axis.group->rank() * slice_numel",
          "(axis.group->size() - 1 - axis.group->rank()) * slice_numel"),
    # Step counts restart at zero when state is loaded or moved.
    Fault("stale_step_counts", "optim/slices/cpu_elementwise.cc",
          "  steps_.assign(counts.begin(), counts.end());\n", ""),
    # Gradients of three or more ranks are divided by one rank too few.
    Fault("wrong_divisor", "core/comm/kernels/reduce_kernels.cc",
          ".divisor = divisor == 0.0 ? ranks : divisor,",
          ".divisor = divisor == 0.0 ? (ranks > 2 ? ranks - 1 : ranks) : divisor,"),
    # Ranks do not wait until all have updated the parameters that they share.
    Fault("missed_wait", "zero/parameters/parameter_store.cc",
          '  if (reads_of_others()) group_.barrier("parameters updated");\n', ""),
    # Owners of matrices read the others' directions too early.
    Fault("missed_wait_for_directions", "zero/step/whole_tensor_exchange.cc",
          "if (window_ != nullptr) return group_->barrier(tag);",
          'if (window_ != nullptr) return tag == "directions" ? void() : group_->barrier(tag);'),
    # LAMB's norms cover only the rank's own piece.
    Fault("norm_of_one_piece", "zero/step/whole_tensor_exchange.cc",
          "for (int rank = 0; rank < plan_.ranks(); ++rank) {\n      const std::span<const int64_t> words",
          "for (int rank = rank_; rank <= rank_; ++rank) {\n      const std::span<const int64_t> words"),
    # Results of matrices are read from the rank after their owner.
    Fault("wrong_owner", "zero/step/whole_tensor_exchange.cc",
          "fetch(entry.owner, plan_.results_begin()",
          "fetch((entry.owner + 1) % plan_.ranks(), plan_.results_begin()"),
    # States of whole tensors overlap in memory.
    Fault("states_overlap", "zero/step/whole_tensor_plan.cc",
          "      end += aligned(state.bytes(entries_[i].dtype));\n",
          "      end += 0 * aligned(state.bytes(entries_[i].dtype));\n"),
    # Two blocks of 8-bit codes share one scale.
    Fault("shared_scales", "optim/slices/elementwise_optimizer.h",
          "return at < 0 ? -1 : at / block;",
          "return at < 0 ? -1 : block > 1 ? at / block / 2 * 2 : at / block;"),
    # Averages leave out units that a step has not used.
    Fault("stale_average", "zero/step/cpu_step_applier.cc",
          "if (average != nullptr) average->update(",
          "if (average != nullptr && parts_.plan.is_used(unit, used)) average->update("),
    # The first unit's masters are not rounded into its parameters.
    Fault("stale_parameters", "zero/parameters/master_values.cc",
          "  if (has_copy(unit)) show(unit, values_[unit], flat);",
          "  if (has_copy(unit) && unit > 0) show(unit, values_[unit], flat);"),
    # A parameter's clipping group is looked up by the parameter's number within its unit.
    Fault("wrong_group", "zero/step/gradient_clip.cc",
          "clipping_.group(plan_[unit].parameters[segment.parameter])",
          "clipping_.group(segment.parameter)"),
    # An operator runs while its parameters' units are not pinned, so others may free them.
    Fault("unpinned_operator", "core/access/access_observer.cc",
          "    pins_.emplace_back(&target->pin(use), use);",
          "    target->pin(use).unpin(use);", ("fsdp_test", "core_test")),
    # Operators inside operators are not seen.
    Fault("unseen_nested_operators", "core/access/access_observer.cc",
          "  constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kAccessKey);\n",
          "  constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kAccessKey);\n"
          "  const c10::impl::ExcludeDispatchKeyGuard unseen(kAccessKey);\n", ("core_test",)),
    # State is written as if every piece were at the start of its tensor.
    Fault("state_begins_at_zero", "zero/state/streamed_state.cc",
          "if (entry.has_value()) sink.write(*entry, part.range.begin, part.values.cpu());",
          "if (entry.has_value()) sink.write(*entry, 0, part.values.cpu());", ("zero_test",)),
    # Loading a state does not change step counts, rates and the engine's counters.
    Fault("numbers_not_loaded", "zero/state/streamed_state.cc",
          "  write_numbers(numbers, slices_.parameters(), slices_.optimizer(), counters);\n",
          "  if (false) write_numbers(numbers, slices_.parameters(), slices_.optimizer(), counters);\n",
          ("zero_test",)),
    # State that may be missing keeps its previous values.
    Fault("missing_state_kept", "zero/state/streamed_state.cc",
          "  slices_.begin_missing(table, presence, numbers);\n",
          "  if (false) slices_.begin_missing(table, presence, numbers);\n", ("zero_test",)),
    # If pieces overlap, the last one is used.
    Fault("last_piece_wins", "zero/state/state_transfer.cc",
          "auto piece = entry.pieces.rbegin(); piece != entry.pieces.rend(); ++piece",
          "auto piece = entry.pieces.begin(); piece != entry.pieces.end(); ++piece", ("zero_test",)),
    # Two ranks write the same elements, and their bits are added.
    Fault("claimed_twice", "zero/state/state_claims.cc",
          "if (is_own) claim.own.insert(claim.own.end(), fresh.begin(), fresh.end());",
          "if (is_own) claim.own.push_back({words[next], words[next + 1] - words[next]});",
          ("zero_test",)),
    # The scaler forgets its number of good steps.
    Fault("scaler_forgets", "zero/engine/engine_state.cc",
          "load_loss_scale({loaded.loss_scale, loaded.good_steps})",
          "load_loss_scale({loaded.loss_scale, 0})", ("zero_test",)),
    # The state of a frozen parameter is kept instead of returned.
    Fault("wrong_state_returned", "zero/engine/engine_state.cc",
          "!next[*slot.parameter].is_trainable", "next[*slot.parameter].is_trainable",
          ("zero_test",)),
    # Ranks with different options continue training.
    Fault("options_not_compared", "core/options/option_table.cc",
          "if (field.is_compared) lines.push_back(", "if (!field.is_compared) lines.push_back("),
    # Buckets are accepted even if nothing uses them.
    Fault("ignored_option_accepted", "core/options/option_table.cc",
          "      if (!is_split) return \"\";\n", "      return \"\";\n", ("core_test",)),
    # An overflow stops a run that scales its loss.
    Fault("wrong_default", "core/options/resolved_options.cc",
          "options.loss_scale.has_value() ? NonFinite::kSkip : NonFinite::kStop",
          "options.loss_scale.has_value() ? NonFinite::kStop : NonFinite::kStop",
          ("core_test", "zero_test")),
    # Options that exclude each other are accepted.
    Fault("pairs_accepted", "core/options/options.cc",
          "if (!stands_in_the_way || !asks_for(pair.option)) continue;",
          "if (true || !stands_in_the_way || !asks_for(pair.option)) continue;", ("core_test",)),
    # A limit that no gradient can keep is accepted.
    Fault("limit_of_zero_accepted", "core/options/option_table.cc",
          "*value > above", "*value >= above", ("core_test",)),
    # In an object store a step exists before its manifest does.
    Fault("begun_step_is_there", "checkpoint/step/step_commit.cc",
          "files.can_rename() ? path : join_path(path, kManifestName)",
          "files.can_rename() ? path : join_path(path, rank_file_name(0, 2))", ("checkpoint_test",)),
    # A step is removed although its manifest remains.
    Fault("manifest_outlives_step", "checkpoint/step/step_commit.cc",
          "return status.ok() || absl::IsNotFound(status) ? remove_tree(files, path) : status;",
          "return remove_tree(files, path);", ("checkpoint_test",)),
    # Only a step's first micro-step counts.
    Fault("dropped_micro_step", "core/reduce/reduced_gradient.cc",
          "    value_.add_(part);\n", "    ;\n"),
)


class Failed(Exception):
    """The reason why there is no result."""


def _source(fault: Fault, tree: pathlib.Path) -> str:
    """The text of the file that contains the fault's place."""
    text = (tree / fault.file).read_text()
    if text.count(fault.before) != 1:
        raise Failed(f"{fault.name}: {fault.file} has {text.count(fault.before)} times, expected once:\n"
                     f"{fault.before}")
    return text


def _build(build: pathlib.Path, programs: tuple[str, ...]) -> None:
    command = ["cmake", "--build", str(build), "--target", *programs]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}")


def _run(build: pathlib.Path, program: str, arguments: list[str]) -> tuple[bool, list[str]]:
    """Returns whether `program` passes, and its failed tests."""
    command = [str(build / "bin" / program), "--gtest_brief=1", *arguments]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=_LIMIT_S, cwd=build)
    except subprocess.TimeoutExpired:
        return False, []
    failed = re.findall(r"^\[  FAILED  \] ([^\s,]+)(?:,.*)?(?: \(\d+ ms\))$", done.stdout, re.M)
    return done.returncode == 0, failed


def _inject(fault: Fault, tree: pathlib.Path, build: pathlib.Path) -> tuple[str, list[str]] | None:
    """The program that notices `fault` and its failed tests; None if all programs pass."""
    text = _source(fault, tree)
    path = tree / fault.file
    path.write_text(text.replace(fault.before, fault.after))
    try:
        _build(build, fault.programs)
        for program in fault.programs:
            passes, failed = _run(build, program, ["--gtest_fail_fast"])
            if not passes:
                return program, failed
        return None
    finally:
        path.write_text(text)


def _absolute(text: str) -> pathlib.Path:
    return pathlib.Path(text).resolve()  # programs run in the build folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", help="the fault of this name")
    parser.add_argument("--check", action="store_true", help="break nothing")
    parser.add_argument("tree", type=_absolute)
    parser.add_argument("build", type=_absolute, nargs="?")
    arguments = parser.parse_args()
    if arguments.check == (arguments.build is not None):
        parser.error("expected --check or a build folder")
    faults = [fault for fault in _FAULTS if arguments.only in (None, fault.name)]
    if not faults:
        parser.error(f"--only: got '{arguments.only}', expected one of {', '.join(f.name for f in _FAULTS)}")
    unnoticed = []
    noticed: dict[str, set[str]] = {}
    try:
        if arguments.check:
            for fault in faults:
                _source(fault, arguments.tree)
            return 0
        for fault in faults:
            start = time.monotonic()
            found = _inject(fault, arguments.tree, arguments.build)
            took = f"{time.monotonic() - start:.0f} s"
            if found is None:
                unnoticed.append(fault.name)
                print(f"{fault.name}: NOT NOTICED ({took})", flush=True)
                continue
            program, tests = found
            noticed.setdefault(program, set()).update(tests)
            print(f"{fault.name}: {program} {' '.join(tests) or 'crashes or hangs'} ({took})", flush=True)
        _build(arguments.build, tuple(noticed) or _PROGRAMS)
        for program, tests in noticed.items():
            passes, _ = _run(arguments.build, program, ["--gtest_filter=" + ":".join(sorted(tests))])
            if not passes:
                raise Failed(f"{program} fails without any fault, too: {' '.join(sorted(tests))}")
    except Failed as error:
        print(f"injected_faults.py: {error}", file=sys.stderr)
        return 2
    print(f"{len(faults) - len(unnoticed)} of {len(faults)} faults noticed")
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
