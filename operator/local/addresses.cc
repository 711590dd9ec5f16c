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

std::vector<std::pair<std::string, std::string>> longest_first(
    const std::map<std::string, std::string>& names) {
  std::vector<std::pair<std::string, std::string>> out(names.begin(), names.end());
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  return out;
}

template <class Ends>
const std::pair<std::string, std::string>* find_name(
    const std::string& text, std::size_t at,
    const std::vector<std::pair<std::string, std::string>>& ordered, Ends ends) {
  for (const auto& entry : ordered) {
    if (!entry.first.empty() && text.compare(at, entry.first.size(), entry.first) == 0 &&
        ends(entry.first, at + entry.first.size()))
      return &entry;
  }
  return nullptr;
}

// Replaces every key that starts a value and whose end `ends` agrees to; the longest wins, and what
// was put in is not looked at again (a run's folder may itself lie under a mounted path).
template <class Ends>
std::string replace_whole(const std::string& text, const std::map<std::string, std::string>& names,
                          std::string_view before, Ends ends) {
  const auto ordered = longest_first(names);
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const auto* found =
        starts_value(text, at, before) ? find_name(text, at, ordered, ends) : nullptr;
    if (found == nullptr) {
      out += text[at++];
    } else {
      out += found->second;
      at += found->first.size();
    }
  }
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
  return fail(ErrorKind::kUnavailable,
              "port " + std::to_string(port) + " is in use on all of 127." +
                  std::to_string(kFirstSecond) +
                  ".*.1. HINT: other local runs are still alive, or a server listens on all "
                  "addresses at this port; stop it");
}

std::string AddressPool::text(int offset) const {
  const int net = (offset - 2) / kPerNet;
  const int last = offset == 1 ? 1 : 2 + (offset - 2) % kPerNet;
  return "127." + std::to_string(second_ + (offset == 1 ? 0 : net)) + "." + std::to_string(third_) +
         "." + std::to_string(last);
}

std::string AddressPool::of_service(const std::string& name) {
  if (const auto it = services_.find(name); it != services_.end()) return it->second;
  std::string address;
  if (services_.empty())
    address = text(1);
  else
    address = take().value_or("127.0.0.1");
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

std::string rewrite_hosts(const std::string& text,
                          const std::map<std::string, std::string>& addresses) {
  return replace_whole(text, addresses, "=/,@\"", [&](const std::string& name, std::size_t end) {
    const bool qualified = name.find('.') != std::string::npos;
    if (end == text.size()) return qualified;
    if (text[end] == ':') return true;
    return qualified && (text[end] == '/' || text[end] == ',' || text[end] == '"');
  });
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

std::string rewrite_paths(const std::string& text,
                          const std::map<std::string, std::string>& mounts) {
  return replace_whole(text, mounts, "=:,@\"", [&](const std::string&, std::size_t end) {
    return end == text.size() || text[end] == '/' || text[end] == ':' || text[end] == ',' ||
           text[end] == '"';
  });
}

}  // namespace archipelago::op
