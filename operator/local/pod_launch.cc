#include "operator/local/pod_launch.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include <nlohmann/json.hpp>

#include "operator/api/json.h"
#include "operator/api/labels.h"
#include "operator/local/addresses.h"

namespace archipelago::op {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kTerminationLog = "/dev/termination-log";

std::string pod_name(const json& pod) { return string_at(pod, {"metadata", "name"}); }

// metadata.labels['archipelago.training/unit'] -> the key between the quotes.
std::string quoted_key(const std::string& path) {
  const auto open = path.find("['");
  const auto close = path.rfind("']");
  return open == std::string::npos || close <= open ? "" : path.substr(open + 2, close - open - 2);
}

std::string field_ref(const json& pod, const std::string& path, const LaunchContext& context) {
  if (path == "status.podIP" || path == "status.podIPs") return context.pod_ip;
  if (path == "metadata.name") return pod_name(pod);
  if (path == "metadata.namespace") return string_at(pod, {"metadata", "namespace"}, "default");
  if (path == "metadata.uid") return string_at(pod, {"metadata", "uid"});
  if (path == "spec.nodeName") return string_at(pod, {"spec", "nodeName"});
  if (path.starts_with("metadata.labels["))
    return string_at(pod, {"metadata", "labels", quoted_key(path)});
  if (path.starts_with("metadata.annotations["))
    return string_at(pod, {"metadata", "annotations", quoted_key(path)});
  return {};
}

Result<std::string> env_value(const json& entry, const json& pod, const json& container,
                              const LaunchContext& context) {
  const json& from = at(entry, {"valueFrom"});
  if (!from.is_object()) return string_at(entry, {"value"});
  if (from.contains("fieldRef"))
    return field_ref(pod, string_at(from, {"fieldRef", "fieldPath"}), context);
  if (from.contains("resourceFieldRef")) {
    const std::string what = string_at(from, {"resourceFieldRef", "resource"});
    const double limit = what == "limits.cpu"
                             ? parse_quantity(at(container, {"resources", "limits", "cpu"}))
                             : parse_quantity(at(container, {"resources", "limits", "memory"}));
    return std::to_string(static_cast<std::int64_t>(std::ceil(limit)));
  }
  if (from.contains("configMapKeyRef")) {
    ARCH_TRY(const json data, context.config_map(string_at(from, {"configMapKeyRef", "name"})));
    return string_at(data, {string_at(from, {"configMapKeyRef", "key"})});
  }
  return fail(ErrorKind::kUnsupported, "env " + string_at(entry, {"name"}) +
                                           ": this source is not supported in a local run");
}

// $(NAME) in command, args and env, as the kubelet expands it; $$ is a dollar sign.
std::string expand(const std::string& text, const std::map<std::string, std::string>& env) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '$' && i + 1 < text.size() && text[i + 1] == '$') {
      out += '$';
      ++i;
      continue;
    }
    const auto close = text[i] == '$' && i + 1 < text.size() && text[i + 1] == '('
                           ? text.find(')', i)
                           : std::string::npos;
    const auto found =
        close == std::string::npos ? env.end() : env.find(text.substr(i + 2, close - i - 2));
    if (found == env.end()) {
      out += text[i];
      continue;
    }
    out += found->second;
    i = close;
  }
  return out;
}

int probe_port(const json& port, const json& container) {
  if (port.is_number_integer()) return port.get<int>();
  if (!port.is_string()) return 0;
  for (const auto& entry : at(container, {"ports"})) {
    if (string_at(entry, {"name"}) == port.get<std::string>())
      return static_cast<int>(int_at(entry, {"containerPort"}));
  }
  return 0;
}

std::optional<Probe> read_probe(const json& container, const char* key, const std::string& pod_ip) {
  const json& probe = at(container, {key, "httpGet"});
  if (!probe.is_object()) return std::nullopt;
  Probe out;
  out.host = string_at(probe, {"host"}, pod_ip);
  out.port = probe_port(at(probe, {"port"}), container);
  out.path = string_at(probe, {"path"}, "/");
  out.initial_delay = seconds(number_at(container, {key, "initialDelaySeconds"}, 0));
  out.period = seconds(std::max(1.0, number_at(container, {key, "periodSeconds"}, 10)));
  out.timeout = seconds(std::max(1.0, number_at(container, {key, "timeoutSeconds"}, 1)));
  out.failure_threshold =
      static_cast<int>(std::max<std::int64_t>(1, int_at(container, {key, "failureThreshold"}, 3)));
  const json& grace = at(container, {key, "terminationGracePeriodSeconds"});
  if (grace.is_number()) out.termination_grace = seconds(grace.get<double>());
  return out;
}

class Launch {
 public:
  Launch(const json& pod, const LaunchContext& context)
      : pod_(pod), context_(context), folder_(context.run_dir / "pods" / pod_name(pod)) {}

  Result<PodLaunch> build() {
    const json& containers = at(pod_, {"spec", "containers"});
    if (!containers.is_array() || containers.size() != 1)
      return fail(ErrorKind::kUnsupported, "a local run takes pods of exactly one container");
    container_ = &containers[0];
    out_.container = string_at(*container_, {"name"}, "main");
    out_.grace = seconds(number_at(pod_, {"spec", "terminationGracePeriodSeconds"}, 30));
    out_.cpu_limit = parse_quantity(at(*container_, {"resources", "limits", "cpu"}));
    out_.memory_limit = static_cast<std::int64_t>(
        parse_quantity(at(*container_, {"resources", "limits", "memory"})));
    out_.folders.push_back(folder_);
    read_termination_log();
    ARCH_TRY_VOID(read_volumes());
    localize_files();
    ARCH_TRY_VOID(read_env());
    read_command();
    out_.startup = read_probe(*container_, "startupProbe", context_.pod_ip);
    out_.liveness = read_probe(*container_, "livenessProbe", context_.pod_ip);
    out_.readiness = read_probe(*container_, "readinessProbe", context_.pod_ip);
    return std::move(out_);
  }

 private:
  void read_termination_log() {
    const std::string inside = string_at(*container_, {"terminationMessagePath"}, kTerminationLog);
    out_.termination_log = folder_ / "termination-log";
    out_.fallback_to_logs =
        string_at(*container_, {"terminationMessagePolicy"}) == "FallbackToLogsOnError";
    mounts_[inside] = out_.termination_log.string();
  }

  Result<fs::path> volume_folder(const std::string& name) {
    for (const auto& volume : at(pod_, {"spec", "volumes"})) {
      if (string_at(volume, {"name"}) != name) continue;
      shared_ = true;
      if (const json& claim = at(volume, {"persistentVolumeClaim"}); claim.is_object())
        return context_.run_dir / "volumes" / string_at(claim, {"claimName"});
      if (const json& path = at(volume, {"hostPath"}); path.is_object())
        return fs::path(string_at(path, {"path"}));
      shared_ = false;
      const fs::path folder = folder_ / "volumes" / name;
      if (const json& map = at(volume, {"configMap"}); map.is_object()) {
        ARCH_TRY(const json data, context_.config_map(string_at(map, {"name"})));
        for (const auto& [key, value] : data.items()) {
          if (value.is_string() && key.find('/') == std::string::npos)
            out_.files.emplace_back(folder / key, value.get<std::string>());
        }
      }
      return folder;
    }
    return fail(ErrorKind::kInvalid, "volumeMount " + name + " has no volume of that name");
  }

  Status read_volumes() {
    for (const auto& mount : at(*container_, {"volumeMounts"})) {
      ARCH_TRY(fs::path folder, volume_folder(string_at(mount, {"name"})));
      out_.folders.push_back(folder);
      const std::string sub = string_at(mount, {"subPath"});
      const std::string inside = string_at(mount, {"mountPath"});
      mounts_[inside] = (sub.empty() ? folder : folder / sub).string();
      if (shared_) shared_mounts_[inside] = mounts_[inside];
    }
    return {};
  }

  // A ConfigMap may name files of a volume (the spec names its data); other paths in it are this
  // machine's.
  void localize_files() {
    for (auto& [file, content] : out_.files) content = rewrite_paths(content, shared_mounts_);
  }

  std::string localize(const std::string& text) const {
    return rewrite_paths(
        rewrite_hosts(rewrite_wildcards(text, context_.pod_ip), context_.addresses), mounts_);
  }

  Status read_env() {
    std::map<std::string, std::string> own;
    for (const auto& entry : at(*container_, {"env"})) {
      ARCH_TRY(const std::string value, env_value(entry, pod_, *container_, context_));
      own[string_at(entry, {"name"})] = expand(value, own);
    }
    out_.env = context_.base_env;
    const std::string threads = std::to_string(
        out_.cpu_limit > 0 ? threads_for(out_.cpu_limit) : std::max(1, context_.default_threads));
    out_.env["OMP_NUM_THREADS"] = threads;  // read before main by what links OpenMP
    for (const auto& [name, value] : own) out_.env[name] = localize(value);
    out_.env["ARCHIPELAGO_TERMINATION_LOG"] = out_.termination_log.string();
    out_.env["ARCHIPELAGO_POD_IP"] = context_.pod_ip;
    return {};
  }

  void read_command() {
    std::vector<std::string> words;
    for (const char* key : {"command", "args"}) {
      for (const auto& word : at(*container_, {key})) {
        if (word.is_string()) words.push_back(localize(expand(word.get<std::string>(), out_.env)));
      }
    }
    if (at(*container_, {"command"}).is_array() && !words.empty()) {
      out_.program = fs::path(words.front()).filename().string();
      words.erase(words.begin());
    } else {  // the image's entry point
      const std::string role = string_at(pod_, {"metadata", "labels", kLabelRole}, out_.container);
      out_.program = "archipelago-" + role;
    }
    out_.args = std::move(words);
  }

  const json& pod_;
  const LaunchContext& context_;
  const fs::path folder_;
  const json* container_ = nullptr;
  std::map<std::string, std::string> mounts_;
  std::map<std::string, std::string> shared_mounts_;  // of claims and host paths
  bool shared_ = false;                               // the volume last looked at is one
  PodLaunch out_;
};

}  // namespace

Result<PodLaunch> plan_launch(const json& pod, const LaunchContext& context) {
  return Launch(pod, context).build();
}

int threads_for(double cpu_limit) {
  return std::max(1, static_cast<int>(std::ceil(cpu_limit - 1e-9)));
}

double parse_quantity(const json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return 0;
  const std::string text = value.get<std::string>();
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string suffix(end);
  if (end == text.c_str() || !std::isfinite(number) || number < 0) return 0;
  static constexpr std::pair<const char*, double> kSuffixes[] = {
      {"", 1},     {"m", 1e-3},  {"k", 1e3},     {"M", 1e6},     {"G", 1e9},
      {"T", 1e12}, {"Ki", 1024}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {"Ti", 0x1p40}};
  for (const auto& [name, factor] : kSuffixes) {
    if (suffix == name) return number * factor;
  }
  return 0;
}

double requested_cpu(const json& pod) {
  double sum = 0;
  for (const auto& container : at(pod, {"spec", "containers"})) {
    const json& request = at(container, {"resources", "requests", "cpu"});
    sum +=
        parse_quantity(request.is_null() ? at(container, {"resources", "limits", "cpu"}) : request);
  }
  return sum;
}

}  // namespace archipelago::op
