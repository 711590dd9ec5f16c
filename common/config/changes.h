#pragma once
// Which changes of a spec a run can live with (docs/resource.md, "Live changes"). Whatever is not
// named there is immutable from creation; the CRD says the same to the API server.
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/config/field_error.h"

namespace archipelago::config {

// One error for each immutable field in which two documents of the same run differ, named by its
// path in `after`. Empty where parse_training_object refuses one of the two: its errors come first.
[[nodiscard]] std::vector<FieldError> check_changes(const nlohmann::json& before,
                                                    const nlohmann::json& after);

}  // namespace archipelago::config
