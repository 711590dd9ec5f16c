// The part of read_spec.h that says where pods run and with what.
#include <algorithm>
#include <array>
#include <utility>

#include "common/config/enums.h"
#include "common/config/names.h"
#include "common/config/quantity.h"
#include "common/config/read_spec.h"

namespace archipelago::config {
namespace {

using Json = nlohmann::json;

std::string quantity_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_number() ? value.dump() : std::string();
}

std::string check_access_mode(std::string_view text) {
  const bool good =
      text == "ReadWriteOnce" || text == "ReadWriteOncePod" || text == "ReadWriteMany";
  return good ? "" : "ReadWriteOnce, ReadWriteOncePod, ReadWriteMany";
}

void read_limits(ObjectReader limits, double& cpu, std::int64_t& memory) {
  if (const Json* value = limits.raw("cpu")) {
    if (const auto parsed = parse_cpu(quantity_text(*value))) {
      cpu = *parsed;
    } else {
      limits.error("cpu", "is not allowed", "cores as 2, \"1.5\" or \"500m\", from 1m");
    }
  }
  if (const Json* value = limits.raw("memory")) {
    const auto parsed = parse_bytes(quantity_text(*value));
    if (parsed && *parsed >= (1 << 20)) {
      memory = *parsed;
    } else {
      limits.error("memory", "is not allowed", "bytes as \"512Mi\" or \"2Gi\", at least 1Mi",
                   parsed ? "milli-bytes and single bytes are hardly meant: add Mi or Gi" : "");
    }
  }
  // Other resources (accelerators, storage) pass through: no finish().
}

// template: the parts that concern processes are read here, the rest passes through to the pods as
// it is.
void read_template(ObjectReader& parent, std::string& out, double& cpu, std::int64_t& memory) {
  const Json* value = parent.raw("template");
  ObjectReader part(value, parent.path("template"), *parent.errors());
  ObjectReader resources = part.object("resources");
  read_limits(resources.object("limits"), cpu, memory);
  for (const std::string_view key : {"requests", "claims"}) resources.tolerate(key);
  resources.finish();
  std::map<std::string, std::string> ignored;
  part.text_map("nodeSelector", ignored, 64, 63);
  part.text_map("labels", ignored, 64, 63);
  part.text_map("annotations", ignored, 64, 64 << 10);
  for (const std::string_view key :
       {"tolerations", "affinity", "priorityClassName", "runtimeClassName", "schedulerName",
        "topologySpreadConstraints", "schedulingGates", "env", "volumes", "volumeMounts"}) {
    part.tolerate(key);
  }
  part.finish();
  if (part.given()) out = value->dump(-1, ' ', false, Json::error_handler_t::replace);
}

void read_storage(ObjectReader storage, StorageSpec& out) {
  if (const Json* value = storage.raw("size")) {
    const std::string text = quantity_text(*value);
    const auto bytes = parse_bytes(text);
    if (bytes && *bytes >= (1 << 20)) {
      out.size = text;
      out.size_bytes = *bytes;
    } else {
      storage.error("size", "is not allowed", "a size such as \"10Gi\", at least 1Mi");
    }
  }
  storage.text("storageClassName", out.storage_class_name, check_subdomain_or_empty);
  storage.text_list("accessModes", out.access_modes, 3, check_access_mode);
  if (out.access_modes.empty())
    storage.error("accessModes", "is empty", "at least one of " + check_access_mode(""));
  storage.text("existingClaim", out.existing_claim, check_subdomain_or_empty);
  storage.boolean("adopt", out.adopt);
  if (out.adopt && out.existing_claim.empty()) {
    storage.error("adopt", "needs existingClaim",
                  "false, or the name of the claim in existingClaim");
  }
  storage.choice("retain", out.retain, kRetainPolicies);
  storage.finish();
}

void read_checkpoint(ObjectReader checkpoint, CheckpointSpec& out) {
  checkpoint.integer("everySteps", out.every_steps, 1, 1'000'000);
  checkpoint.integer("keep", out.keep, 1, 100);
  checkpoint.only("keepEvery", 0);
  checkpoint.choice("journal", out.journal, kJournals);
  checkpoint.finish();
}

}  // namespace

void read_images(ObjectReader images, ImagesSpec& out) {
  images.text("learner", out.learner, check_image);
  images.text("outerOptimizer", out.outer_optimizer, check_image);
  Word policy = out.pull_policy;
  if (images.choice("pullPolicy", policy, kPullPolicies)) out.pull_policy = std::string(policy);
  images.text_list("pullSecrets", out.pull_secrets, 16, check_subdomain);
  images.finish();
}

void read_volume(ObjectReader volume, DataVolume& out) {
  volume.text("claim", out.claim, check_subdomain_or_empty);
  if (!volume.text("hostPath", out.host_path, std::size_t{1024}) || out.host_path.empty()) {
    out.host_path.clear();
  } else if (std::string allowed = check_absolute_path(out.host_path); !allowed.empty()) {
    volume.error("hostPath", "is not allowed", std::move(allowed));
  }
  if (!out.claim.empty() && !out.host_path.empty()) {
    volume.error("hostPath", "stands beside claim", "one of claim and hostPath");
  }
  volume.finish();
}

void read_outer_optimizer(ObjectReader outer, OuterOptimizerSpec& out) {
  outer.text("datacenter", out.datacenter, check_label);
  Word word;
  outer.choice("shards", word, kShards);
  read_storage(outer.object("storage"), out.storage);
  read_checkpoint(outer.object("checkpoint"), out.checkpoint);
  ObjectReader snapshot = outer.object("snapshot");
  snapshot.only("everySteps", 0);
  snapshot.only("size", "10Gi");
  snapshot.only("storageClassName", "");
  snapshot.finish();
  ObjectReader service = outer.object("service");
  service.choice("type", word, kServiceTypes);
  service.finish();
  outer.only("endpoint", "");
  outer.number("finishedLingerSeconds", out.finished_linger_seconds, {0, 604800});
  read_template(outer, out.template_json, out.cpu_limit, out.memory_limit_bytes);
  outer.finish();
}

void read_datacenters(ObjectReader& spec, std::vector<DatacenterSpec>& out) {
  spec.list("datacenters", 64, [&](ObjectReader& item, std::size_t /*index*/) {
    DatacenterSpec datacenter;
    if (!item.text("name", datacenter.name, check_label) && !item.has("name")) {
      item.error("name", "is required", check_label(""));
    }
    item.integer("learnerUnits", datacenter.learner_units, 0, 256);
    item.only("workersPerUnit", 1);
    item.only("minWorkersPerUnit", 1);
    ObjectReader images = item.object("images");
    images.text("learner", datacenter.learner_image, check_image);
    images.text_list("pullSecrets", datacenter.pull_secrets, 16, check_subdomain);
    images.finish();
    ObjectReader data = item.object("data");
    read_volume(data.object("volume"), datacenter.volume);
    data.finish();
    ObjectReader inner = item.object("inner");
    std::int64_t number = 0;
    if (inner.integer("batchSize", number, 1, 65536)) datacenter.inner.batch_size = number;
    if (inner.integer("gradientAccumulation", number, 1, 65536))
      datacenter.inner.gradient_accumulation = number;
    inner.finish();
    read_template(item, datacenter.template_json, datacenter.cpu_limit,
                  datacenter.memory_limit_bytes);
    ObjectReader scavenge = item.object("scavenge");
    scavenge.only("extra", 0);
    scavenge.finish();
    item.finish();
    out.push_back(std::move(datacenter));
  });
}

void read_restart(ObjectReader restart, RestartSpec& out) {
  restart.integer("backoffLimit", out.backoff_limit, 0, 1'000'000);
  restart.number("backoffSeconds", out.backoff_seconds, {0, 86400});
  restart.number("maxBackoffSeconds", out.max_backoff_seconds, {0, 86400});
  restart.number("resetSeconds", out.reset_seconds, {0, 604800});
  restart.number("nodeLostSeconds", out.node_lost_seconds, {1, 86400});
  restart.number("stallSeconds", out.stall_seconds, {1, 86400});
  restart.finish();
}

}  // namespace archipelago::config
