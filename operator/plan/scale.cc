#include "operator/plan/scale.h"

#include <algorithm>

#include "operator/api/labels.h"

namespace archipelago::op {
namespace {

std::int64_t highest_label(const std::vector<ObservedPod>& pods, const std::string& unit) {
  std::int64_t out = 0;
  for (const ObservedPod* p : pods_of_unit(pods, unit)) out = std::max(out, p->incarnation);
  return out;
}

UnitStatus new_unit(const std::string& name, TrainingStatus& status,
                    const std::vector<ObservedPod>& pods, const OuterStatus* document) {
  UnitStatus u;
  u.name = name;
  const std::int64_t label = highest_label(pods, name);
  const std::int64_t seen = document != nullptr ? document->highest(name) : 0;
  const auto retired = std::find_if(status.retired.begin(), status.retired.end(),
                                    [&](const RetiredUnit& r) { return r.name == name; });
  if (retired != status.retired.end()) {
    u.incarnation = std::max({retired->last_incarnation, label, seen}) + 1;
    status.retired.erase(retired);
  } else if (label >= 1 && label >= seen) {
    u.incarnation = label;  // the status was lost: a pod that lives is not thrown away
  } else {
    u.incarnation = seen + 1;
  }
  return u;
}

void retire(const UnitStatus& unit, TrainingStatus& status, const std::vector<ObservedPod>& pods) {
  const std::int64_t last = std::max(unit.incarnation, highest_label(pods, unit.name));
  status.retired.push_back({unit.name, last});
  if (status.retired.size() > kMaxStatusUnits) status.retired.erase(status.retired.begin());
}
}  // namespace

std::vector<DesiredUnit> desired_units(const config::TrainingSpec& spec) {
  std::vector<DesiredUnit> out;
  for (const config::DatacenterSpec& dc : spec.datacenters)
    for (std::int32_t i = 0; i < dc.learner_units; ++i)
      out.push_back({&dc, i, config::unit_name(dc.name, i)});
  return out;
}

std::vector<const ObservedPod*> pods_of_unit(const std::vector<ObservedPod>& pods,
                                             const std::string& unit) {
  std::vector<const ObservedPod*> out;
  for (const ObservedPod& p : pods)
    if (p.role == kRoleLearner && p.unit == unit) out.push_back(&p);
  return out;
}

void fit_units(TrainingStatus& status, const std::vector<DesiredUnit>& desired,
               const std::vector<ObservedPod>& pods, const OuterStatus* document, Decision& d) {
  const auto wanted = [&](const std::string& name) {
    return std::any_of(desired.begin(), desired.end(),
                       [&](const DesiredUnit& u) { return u.name == name; });
  };
  const std::vector<UnitStatus> before = std::move(status.units);
  status.units.clear();
  for (const UnitStatus& u : before)
    if (!wanted(u.name)) retire(u, status, pods);
  for (const DesiredUnit& want : desired) {
    const auto old = std::find_if(before.begin(), before.end(),
                                  [&](const UnitStatus& u) { return u.name == want.name; });
    status.units.push_back(old != before.end() ? *old
                                               : new_unit(want.name, status, pods, document));
  }
  for (const ObservedPod& p : pods)
    if (p.role == kRoleLearner && !wanted(p.unit) && !p.deletion)
      d.deletes.push_back({Kind::kPod, p.name, p.uid, std::nullopt});
}

}  // namespace archipelago::op
