#pragma once
// TLS for the client: one context a client, one session a connection. The chain and the name are
// checked by OpenSSL itself; there is no way to turn that off.
#include <memory>
#include <string>

#include <openssl/ssl.h>

#include "common/base/result.h"
#include "common/http/client.h"

namespace archipelago::http {

class TlsContext {
 public:
  // `host` is what the certificate must be for when options.server_name is empty. kInvalid names
  // the field that can't be used; no key or certificate text is ever in an error.
  [[nodiscard]] static Result<TlsContext> create(const TlsOptions& options,
                                                 const std::string& host);
  // A session over the connected socket, nullptr when out of memory. Its reads and writes never
  // block and never raise SIGPIPE; the socket stays the caller's.
  [[nodiscard]] SSL* open(int fd) const;
  [[nodiscard]] const std::string& name() const { return name_; }  // the name that is checked

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  std::unique_ptr<SSL_CTX, Free> context_;
  std::string name_;
  bool is_address_ = false;
};

// What the failed call on `session` means, from its verdict on the chain and this thread's error
// queue: "certificate is not for NAME", "check client certificate" and so on. kRefused when trying
// again can't help, otherwise kUnavailable.
[[nodiscard]] Error tls_error(const SSL* session, const std::string& name);

}  // namespace archipelago::http
