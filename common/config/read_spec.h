#pragma once
// Field by field from JSON to spec.h: types, ranges, unknown and not yet supported fields. Rules
// between fields and defaults that follow from others: rules.h. Within this room only.
#include "common/config/json_reader.h"
#include "common/config/spec.h"

namespace archipelago::config {

// Fields whose default follows from others: whether the user gave them.
struct Given {
  bool outer_learning_rate = false;
  bool warmup_steps = false;
  bool overlap = false;
  bool max_lead = false;
  bool start_units = false;
};

void read_metadata(ObjectReader metadata, DecoupledTraining& training);
void read_training_spec(ObjectReader spec, TrainingSpec& out, Given& given);

// Placement: where and how pods run (read_placement.cc).
void read_images(ObjectReader images, ImagesSpec& out);
void read_volume(ObjectReader volume, DataVolume& out);
void read_outer_optimizer(ObjectReader outer, OuterOptimizerSpec& out);
void read_datacenters(ObjectReader& spec, std::vector<DatacenterSpec>& out);
void read_restart(ObjectReader restart, RestartSpec& out);

}  // namespace archipelago::config
