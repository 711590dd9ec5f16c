#include "common/config/names.h"

#include <algorithm>

namespace archipelago::config {
namespace {

bool lower_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

bool is_label(std::string_view text) {
  if (text.empty() || text.size() > kMaxNameLength) return false;
  if (!lower_or_digit(text.front()) || !lower_or_digit(text.back())) return false;
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return lower_or_digit(c) || c == '-'; });
}

}  // namespace

std::string check_label(std::string_view text) {
  return is_label(text) ? ""
                        : "1 to 63 of a-z, 0-9 and '-', starting and ending with a letter or digit";
}

std::string check_subdomain(std::string_view text) {
  bool good = !text.empty() && text.size() <= 253;
  std::string_view rest = text;
  while (good) {
    const std::size_t dot = rest.find('.');
    good = is_label(rest.substr(0, dot));
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  return good ? ""
              : "at most 253 of a-z, 0-9, '-' and '.', each part starting and ending with a letter "
                "or digit";
}

std::string check_subdomain_or_empty(std::string_view text) {
  return text.empty() ? "" : check_subdomain(text);
}

std::string check_run_name(std::string_view text) {
  const bool good = is_label(text) && text.front() >= 'a';
  return good ? ""
              : "a-z, 0-9 and '-', starting with a letter, ending with a letter or digit (it "
                "starts Service names)";
}

std::string check_path(std::string_view text) {
  const bool good =
      !text.empty() && text.size() <= 1024 && text.find('\n') == std::string_view::npos;
  return good ? "" : "a path of 1 to 1024 bytes";
}

std::string check_absolute_path(std::string_view text) {
  const bool good = text.size() <= 1024 && !text.empty() && text.front() == '/' &&
                    text.find("..") == std::string_view::npos;
  return good ? "" : "an absolute path of at most 1024 bytes without '..'";
}

std::string check_image(std::string_view text) {
  const bool good =
      !text.empty() && text.size() <= 512 &&
      std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7F; });
  return good ? "" : "an image reference of 1 to 512 printable characters without spaces";
}

std::string check_uid(std::string_view text) {
  const bool good = text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
                      return lower_or_digit(c) || (c >= 'A' && c <= 'Z') || c == '-';
                    });
  return good ? "" : "at most 64 letters, digits and '-'";
}

std::size_t longest_run_name(const std::string& run) {
  return run.size() + std::string_view("-outer-12345678").size();
}

std::size_t longest_pod_name(const std::string& run, const DatacenterSpec& datacenter) {
  const std::string ordinal = std::to_string(std::max(0, datacenter.learner_units - 1));
  return run.size() + 1 + datacenter.name.size() + 1 + ordinal.size() +
         std::string_view("-i123456").size();
}

std::int32_t total_units(const TrainingSpec& spec) {
  std::int32_t units = 0;
  for (const DatacenterSpec& datacenter : spec.datacenters) units += datacenter.learner_units;
  return units;
}

std::string unit_name(const std::string& datacenter, std::int32_t ordinal) {
  return datacenter + "-" + std::to_string(ordinal);
}

}  // namespace archipelago::config
