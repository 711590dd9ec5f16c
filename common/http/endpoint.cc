#include "common/http/endpoint.h"

#include <charconv>

namespace archipelago::http {

std::string Endpoint::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<Endpoint> parse_endpoint(std::string_view text, std::string_view default_host) {
  const auto bad = [&] {
    return fail(ErrorKind::kInvalid,
                "address '" + std::string(text) +
                    "': allowed are host:port, [ipv6]:port and http://host:port");
  };
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    return fail(ErrorKind::kUnsupported,
                "address '" + std::string(text) + "': https is not supported yet, allowed: http");
  }
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return bad();
  std::string_view host = rest.substr(0, colon);
  const std::string_view digits = rest.substr(colon + 1);
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return bad();
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return bad();
  }
  int port = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port < 0 || port > 65535)
    return bad();
  if (host.find_first_of("/ @?#\t\r\n") != std::string_view::npos) return bad();
  return Endpoint{std::string(host.empty() ? default_host : host), port};
}

std::string url_encode(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~';
    if (plain) {
      out.push_back(c);
    } else {
      const auto u = static_cast<unsigned char>(c);
      out.push_back('%');
      out.push_back(kHex[u >> 4]);
      out.push_back(kHex[u & 15]);
    }
  }
  return out;
}

}  // namespace archipelago::http
