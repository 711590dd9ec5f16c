#include "operator/local/addresses.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cctype>
#include <cstring>
#include <netinet/in.h>
#include <sys/socket.h>
#include <vector>

#include "common/base/files.h"
#include "common/base/rng.h"

namespace archipelago::op {

namespace {

constexpr int kFirstSecond = 77;
constexpr int kPerNet = 253;           // .2 to .254
constexpr int kMaxAddresses = 10'000;  // far above 256 units and their pasts

bool can_bind(const std::string& address, int port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return false;
  const int one = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(static_cast<std::uint16_t>(port));
  ::inet_pton(AF_INET, address.c_str(), &in.sin_addr);
  sockaddr generic{};
  std::memcpy(&generic, &in, sizeof in);
  return ::bind(fd.get(), &generic, sizeof in) == 0 && ::listen(fd.get(), 1) == 0;
}

bool starts_value(const std::string& text, std::size_t at, std::string_view before) {
  return at == 0 || before.find(text[at - 1]) != std::string_view::npos;
}

// Replaces `from` where it starts a value and `ends` agrees to what follows it.
template <class Ends>
std::string replace_whole(std::string text, const std::string& from, const std::string& to, std::string_view before,
                          Ends ends) {
  if (from.empty()) return text;
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
    if (starts_value(text, at, before) && ends(at + from.size())) {
      text.replace(at, from.size(), to);
      at += to.size();
    } else {
      ++at;
    }
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> longest_first(const std::map<std::string, std::string>& names) {
  std::vector<std::pair<std::string, std::string>> out(names.begin(), names.end());
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  return out;
}

}  // namespace

AddressPool::AddressPool(int second, int third) : second_(second), third_(third) {}

Result<AddressPool> AddressPool::find_free(std::string_view seed, int port) {
  std::uint64_t hash = 0;
  for (const char c : seed) hash = mix64(hash ^ static_cast<unsigned char>(c));
  for (int i = 0; i < 254; ++i) {
    const int third = static_cast<int>((hash + static_cast<std::uint64_t>(i)) % 254) + 1;
    AddressPool pool(kFirstSecond, third);
    if (can_bind(pool.text(1), port)) return pool;
  }
  return fail(ErrorKind::kUnavailable, "port " + std::to_string(port) + " is in use on all of 127." +
                                           std::to_string(kFirstSecond) +
                                           ".*.1. HINT: other local runs are still alive, or a server listens on all "
                                           "addresses at this port; stop it");
}

std::string AddressPool::text(int offset) const {
  const int net = (offset - 2) / kPerNet;
  const int last = offset == 1 ? 1 : 2 + (offset - 2) % kPerNet;
  return "127." + std::to_string(second_ + (offset == 1 ? 0 : net)) + "." + std::to_string(third_) + "." +
         std::to_string(last);
}

std::string AddressPool::of_service(const std::string& name) {
  if (const auto it = services_.find(name); it != services_.end()) return it->second;
  std::string address;
  if (services_.empty()) address = text(1);
  else address = take().value_or("127.0.0.1");
  services_.emplace(name, address);
  return address;
}

Result<std::string> AddressPool::take() {
  // Round robin: an address rests before it is used again.
  for (int i = 0; i < kMaxAddresses; ++i) {
    const int offset = next_;
    next_ = next_ + 1 > kMaxAddresses ? 2 : next_ + 1;
    if (used_.insert(offset).second) return text(offset);
  }
  return fail(ErrorKind::kUnavailable, "no free loopback address");
}

void AddressPool::give_back(const std::string& address) {
  std::erase_if(used_, [&](int offset) { return text(offset) == address; });
}

std::map<std::string, std::string> dns_names(const std::string& name, const std::string& name_space,
                                             const std::string& address) {
  return {{name, address},
          {name + "." + name_space, address},
          {name + "." + name_space + ".svc", address},
          {name + "." + name_space + ".svc.cluster.local", address}};
}

std::string rewrite_hosts(std::string text, const std::map<std::string, std::string>& addresses) {
  for (const auto& [name, address] : longest_first(addresses)) {
    const bool qualified = name.find('.') != std::string::npos;
    text = replace_whole(text, name, address, "=/,@\"", [&](std::size_t end) {
      if (end == text.size()) return qualified;
      if (text[end] == ':') return true;
      return qualified && (text[end] == '/' || text[end] == ',' || text[end] == '"');
    });
  }
  return text;
}

std::string rewrite_wildcards(const std::string& text, const std::string& address) {
  const std::size_t equals = text.starts_with("-") ? text.find('=') : std::string::npos;
  const std::size_t start = equals == std::string::npos ? 0 : equals + 1;
  const std::string value = text.substr(start);
  for (const std::string_view wildcard : {"0.0.0.0:", "[::]:", "*:", ":"}) {
    if (!value.starts_with(wildcard)) continue;
    const std::string port = value.substr(wildcard.size());
    const bool digits = !port.empty() && std::all_of(port.begin(), port.end(), [](unsigned char c) {
      return std::isdigit(c) != 0;
    });
    if (digits) return text.substr(0, start) + address + ":" + port;
  }
  if (value == "0.0.0.0" || value == "::") return text.substr(0, start) + address;
  return text;
}

std::string rewrite_paths(std::string text, const std::map<std::string, std::string>& mounts) {
  for (const auto& [inside, outside] : longest_first(mounts)) {
    text = replace_whole(text, inside, outside, "=:,@\"", [&](std::size_t end) {
      return end == text.size() || text[end] == '/' || text[end] == ':' || text[end] == ',' || text[end] == '"';
    });
  }
  return text;
}

}  // namespace archipelago::op
