#include "operator/plan/template_check.h"

#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/plan/children.h"

namespace archipelago::op {
namespace {
using nlohmann::json;

constexpr std::int64_t kNoIncarnation = 999'999;  // names that no real pod has, of the longest kind

json parse_or_null(const std::string& text) {
  json out = json::parse(text, nullptr, false);
  return out.is_discarded() ? json() : out;
}

const json& datacenter(const json& spec, const std::string& name) {
  static const json none;
  const json& all = at(spec, {"datacenters"});
  if (!all.is_array()) return none;
  for (const json& dc : all)
    if (string_at(dc, {"name"}) == name) return dc;
  return none;
}
}  // namespace

std::vector<json> template_checks(const Observed& in, const PlanOptions& options) {
  std::vector<json> out;
  if (!in.config_map || !in.config_map->ours) return out;
  const json stored = parse_or_null(in.config_map->spec_text);
  const json& before = at(stored, {"spec"});
  if (!before.is_object()) return out;
  const auto changed = [](const json& old, const std::string& now) {
    return at(old, {"template"}) != parse_or_null(now);
  };
  if (changed(at(before, {"outerOptimizer"}), in.run.spec.outer_optimizer.template_json))
    out.push_back(build_outer_pod(in.run, kNoIncarnation, options));
  for (const config::DatacenterSpec& dc : in.run.spec.datacenters) {
    const json& old = datacenter(before, dc.name);
    if (old.is_object() && changed(old, dc.template_json))
      out.push_back(build_learner_pod(in.run, dc, 0, kNoIncarnation, options));
  }
  return out;
}

}  // namespace archipelago::op
