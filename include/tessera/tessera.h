#pragma once

#if __cplusplus < 202002L
#error "Tessera needs C++20: compile with -std=c++20, which Tessera::tessera does in CMake"
#endif

/// @file
/// The umbrella header: everything a training program needs.

#include <torch/torch.h>

// Ranks and what they exchange.
#include "tessera/collective.h"
#include "tessera/device_mesh.h"
#include "tessera/environment.h"
#include "tessera/errors.h"
#include "tessera/launch.h"
#include "tessera/nccl_options.h"
#include "tessera/process_group.h"
#include "tessera/process_group_options.h"
#include "tessera/record_errors.h"
#include "tessera/rendezvous.h"
#include "tessera/run_threads.h"
#include "tessera/shared_buffer.h"
#include "tessera/time_out.h"
#include "tessera/window.h"
#include "tessera/work.h"

// How to train: strategies and options.
#include "tessera/activation_checkpoint.h"
#include "tessera/algorithm_options.h"
#include "tessera/buffer_sync.h"
#include "tessera/comm_hook.h"
#include "tessera/eight_bit_options.h"
#include "tessera/elementwise.h"
#include "tessera/lamb_options.h"
#include "tessera/lion_options.h"
#include "tessera/muon_options.h"
#include "tessera/optimizer_plan.h"
#include "tessera/option_list.h"
#include "tessera/options.h"
#include "tessera/power_sgd.h"
#include "tessera/precision.h"
#include "tessera/reproducible.h"
#include "tessera/strategy.h"
#include "tessera/sync_batch_norm.h"
#include "tessera/torch_elementwise.h"
#include "tessera/weight_average.h"
#include "tessera/whole_tensor.h"
#include "tessera/wrap_policy.h"
#include "tessera/wrap_rules.h"

// Training.
#include "tessera/backward_options.h"
#include "tessera/eight_bit_state.h"
#include "tessera/engine.h"
#include "tessera/flat_layout.h"
#include "tessera/gather_counts.h"
#include "tessera/join.h"
#include "tessera/mean.h"
#include "tessera/no_sync.h"
#include "tessera/parallelize.h"
#include "tessera/parameter_predicate.h"
#include "tessera/parameter_table.h"
#include "tessera/partial_state.h"
#include "tessera/state_dict.h"
#include "tessera/state_stream.h"
#include "tessera/step_result.h"
#include "tessera/unit_plan.h"

// Saving a run, and resuming it after a kill.
#include "tessera/checkpoint.h"
#include "tessera/checkpoints.h"
#include "tessera/file_system.h"
#include "tessera/safetensors.h"
#include "tessera/stop_request.h"

// The data that ranks train on.
#include "tessera/distributed_sampler.h"
#include "tessera/sampler_state.h"

// What training costs in memory, and records of what happened when.
#include "tessera/element_state.h"
#include "tessera/memory_formula.h"
#include "tessera/memory_meter.h"
#include "tessera/report.h"
#include "tessera/trace.h"
#include "tessera/trace_file.h"
