#include "operator/kube/lease.h"

#include "operator/api/json.h"
#include "operator/kube/event_recorder.h"

namespace archipelago::op::kube {
using nlohmann::json;

LeaseView see(const LeaseView& before, const json& read, Duration fallback, TimePoint now) {
  LeaseView out;
  if (!read.is_object()) return out;
  out.exists = true;
  out.object = read;
  out.holder = string_at(read, {"spec", "holderIdentity"});
  const std::int64_t given = int_at(read, {"spec", "leaseDurationSeconds"});
  out.duration = given > 0 && given <= 86'400 ? Duration(std::chrono::seconds(given)) : fallback;
  // A foreign annotation changes the version, not the record.
  const bool same =
      before.exists && at(before.object, {"spec"}) == at(read, {"spec"}) &&
      string_at(before.object, {"metadata", "uid"}) == string_at(read, {"metadata", "uid"});
  out.changed = same ? before.changed : now;
  return out;
}

LeaseStep next_step(const LeaseView& view, const std::string& identity, TimePoint now) {
  if (!view.exists) return LeaseStep::kCreate;
  if (view.holder == identity) return LeaseStep::kRenew;
  if (view.holder.empty() || now >= view.changed + view.duration) return LeaseStep::kTake;
  return LeaseStep::kWait;
}

json lease_body(const LeaseView& view, LeaseStep step, const LeaderOptions& options,
                WallTime wall) {
  json out = view.exists ? view.object : json::object();
  out["apiVersion"] = "coordination.k8s.io/v1";
  out["kind"] = "Lease";
  out["metadata"]["name"] = options.name;
  out["metadata"]["namespace"] = options.name_space;
  out["metadata"].erase("managedFields");
  if (!out["spec"].is_object()) out["spec"] = json::object();
  json& spec = out["spec"];
  const std::int64_t transitions = int_at(spec, {"leaseTransitions"});
  const std::string now = micro_time(wall);
  spec["holderIdentity"] = options.identity;
  spec["leaseDurationSeconds"] = options.lease / std::chrono::seconds(1);
  spec["renewTime"] = now;
  if (step != LeaseStep::kRenew) spec["acquireTime"] = now;
  spec["leaseTransitions"] = step == LeaseStep::kTake ? transitions + 1 : transitions;
  return out;
}

json released_body(const LeaseView& view, WallTime wall) {
  json out = view.object;
  out["metadata"].erase("managedFields");
  out["spec"]["holderIdentity"] = "";
  out["spec"]["leaseDurationSeconds"] = 1;
  out["spec"]["renewTime"] = micro_time(wall);
  return out;
}

bool is_lost(const LeaseView& view, const std::string& identity, TimePoint renewed,
             const LeaderOptions& options, TimePoint now) {
  return view.holder != identity || now >= renewed + options.renew_deadline;
}

}  // namespace archipelago::op::kube
