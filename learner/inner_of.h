#pragma once
// The inner settings of a learner in `datacenter`: the run's, with what that datacenter overrides.
#include <string>

#include "common/config/spec.h"

namespace archipelago::learner {

[[nodiscard]] inline config::InnerSpec inner_of(const config::TrainingSpec& spec,
                                                const std::string& datacenter) {
  config::InnerSpec inner = spec.inner;
  for (const auto& dc : spec.datacenters) {
    if (dc.name != datacenter) continue;
    inner.batch_size = dc.inner.batch_size.value_or(inner.batch_size);
    inner.gradient_accumulation =
        dc.inner.gradient_accumulation.value_or(inner.gradient_accumulation);
  }
  return inner;
}

}  // namespace archipelago::learner
