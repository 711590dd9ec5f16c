#include "operator/api/labels.h"

namespace archipelago::op {

Labels child_labels(const std::string& run, const std::string& run_uid, const std::string& role) {
  return {{kLabelRun, run},
          {kLabelRunUid, run_uid},
          {kLabelRole, role},
          {"app.kubernetes.io/name", "archipelago"},
          {"app.kubernetes.io/instance", run},
          {"app.kubernetes.io/component", role},
          {"app.kubernetes.io/part-of", "archipelago"},
          {"app.kubernetes.io/managed-by", "archipelago-operator"}};
}

Labels learner_labels(const std::string& run, const std::string& run_uid,
                      const std::string& datacenter, const std::string& unit,
                      std::int64_t incarnation, int rank) {
  Labels out = child_labels(run, run_uid, kRoleLearner);
  out[kLabelDatacenter] = datacenter;
  out[kLabelUnit] = unit;
  out[kLabelIncarnation] = std::to_string(incarnation);
  out[kLabelRank] = std::to_string(rank);
  return out;
}

Labels run_selector(const std::string& run_uid) { return {{kLabelRunUid, run_uid}}; }

}  // namespace archipelago::op
