#pragma once
// A spec that is right, for tests that break one thing in it.
#include <string>
#include <vector>

#include "common/config/parse.h"

namespace archipelago::config {

inline constexpr const char* kGood = R"(apiVersion: archipelago.training/v1alpha1
kind: DecoupledTraining
metadata: {name: islands}
spec:
  model: {hiddenSize: 64, layers: 3, heads: 4, kvHeads: 2, intermediateSize: 128, contextLength: 64}
  data:
    train: {path: data/train.txt}
    validation:
    - {name: main, path: data/val.txt}
  datacenters:
  - name: us-east
    learnerUnits: 2
  - name: eu-west
    learnerUnits: 2
)";

// The errors of the good spec after these --set overrides; empty when it is still good.
inline std::vector<FieldError> errors_of(const std::vector<std::string>& sets) {
  auto training = parse_training(kGood, sets);
  return training ? std::vector<FieldError>{} : training.error();
}

inline DecoupledTraining good(const std::vector<std::string>& sets = {}) {
  auto training = parse_training(kGood, sets);
  return training ? *training : DecoupledTraining{};
}

}  // namespace archipelago::config
