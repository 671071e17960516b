#include "tessera/zero/engine/trained_parameters.h"

#include "tessera/zero/parameters/shown_average.h"

namespace tessera::internal {

TrainedParameters::TrainedParameters(EngineContext& context, Values brought)
    : store(
          context.group, context.parts.table, context.parts.plan, context.slices,
          context.parts.options,
          [&watch = context.backward_watch] { return watch.is_inside_backward(); },
          context.group.can().completes_on_host ? nullptr : &context.streams,
          context.persistent.meter, context.persistent.trace.get(), brought),
      average(make_average(context.parts.options, store, context.group)),
      applier(make_step_applier({.group = context.group,
                                 .table = context.parts.table,
                                 .plan = context.parts.plan,
                                 .slices = context.slices,
                                 .options = context.parts.options,
                                 .store = store,
                                 .failure = context.failure,
                                 .meter = context.persistent.meter,
                                 .trace = context.persistent.trace.get(),
                                 .average = average.get()},
                                context.parts.optimizer, context.parts.group_of)),
      early_update(applier->update_in_backward()),
      access(context.group, context.parts.table, context.parts.plan, store),
      context_(context) {
  context_.persistent.meter.add(optimizer_class(), optimizer_bytes());
  context_.persistent.meter.add(MemoryClass::kControl, applier->bytes() + access.bytes());
  optimizer().groups().show_in(*context_.persistent.optimizer);
  context_.persistent.comm_hook.prepare(context_.parts.table, context_.parts.plan,
                                        applier->has_loss_scale(), context_.persistent.meter);
}

TrainedParameters::~TrainedParameters() {
  context_.persistent.meter.remove(optimizer_class(), optimizer_bytes());
  context_.persistent.meter.remove(MemoryClass::kControl, applier->bytes() + access.bytes());
}

MemoryClass TrainedParameters::optimizer_class() const {
  return context_.parts.options.offload == Offload::kNone ? MemoryClass::kOptimizer
                                                          : MemoryClass::kHost;
}

/// Returns how many bytes the optimizer's states and the average take on this rank.
int64_t TrainedParameters::optimizer_bytes() const {
  return optimizer().state_bytes() + (average != nullptr ? average->bytes() : 0);
}

void TrainedParameters::settle() {
  store.finish();
  store.free_all();
}

}  // namespace tessera::internal
