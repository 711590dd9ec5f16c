#pragma once
// Defaults that follow from other fields, then the rules between fields (docs/resource.md,
// "Rules"). A rule is skipped when a field that it reads is already wrong. Within this room only.
#include "common/config/field_error.h"
#include "common/config/read_spec.h"
#include "common/config/spec.h"

namespace archipelago::config {

void resolve_defaults(TrainingSpec& spec, const Given& given);
void check_rules(const DecoupledTraining& training, ErrorList& errors);

}  // namespace archipelago::config
