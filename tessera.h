#pragma once

/// The umbrella header: everything a training program needs.

#include <torch/torch.h>

#include "tessera/core/comm/device_mesh.h"
#include "tessera/core/comm/process_group.h"
#include "tessera/core/comm/rendezvous.h"
#include "tessera/core/errors.h"
#include "tessera/core/memory/memory_formula.h"
#include "tessera/core/memory/memory_meter.h"
#include "tessera/core/options.h"
#include "tessera/core/sched/trace.h"
#include "tessera/core/state_dict.h"
#include "tessera/core/strategy.h"
#include "tessera/fsdp/activation_checkpoint.h"
#include "tessera/fsdp/wrap_rules.h"
#include "tessera/optim/optimizer_plan.h"
#include "tessera/zero/engine.h"
#include "tessera/zero/parallelize.h"
#include "tessera/zero/trace_file.h"
