#include "common/http/tls.h"

#include <arpa/inet.h>
#include <cerrno>
#include <sys/socket.h>

#include <climits>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

namespace archipelago::http {
namespace {

template <auto release>
struct Release {
  template <class T>
  void operator()(T* object) const {
    release(object);
  }
};
using Bio = std::unique_ptr<BIO, Release<BIO_free>>;
using Certificate = std::unique_ptr<X509, Release<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Release<EVP_PKEY_free>>;

// The socket as OpenSSL sees it: its own one may block, and dies of SIGPIPE.
int socket_of(BIO* bio) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
}

int bio_write(BIO* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  ssize_t n = 0;
  do {
    n = ::send(socket_of(bio), data, static_cast<std::size_t>(size), MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) BIO_set_retry_write(bio);
  return static_cast<int>(n);
}

int bio_read(BIO* bio, char* data, int size) {
  BIO_clear_retry_flags(bio);
  ssize_t n = 0;
  do {
    n = ::recv(socket_of(bio), data, static_cast<std::size_t>(size), MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) BIO_set_retry_read(bio);
  return static_cast<int>(n);
}

long bio_control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

const BIO_METHOD* socket_method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  return method;
}

Bio memory_of(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// An encrypted key must be an error, not a question on the terminal.
int no_password(char*, int, int, void*) { return -1; }

Status trust(SSL_CTX* context, const std::string& pem) {
  if (pem.empty()) {
    if (SSL_CTX_set_default_verify_paths(context) == 1) return {};
    return fail(ErrorKind::kIo, "tls: the system's certificate store can't be opened");
  }
  const Bio from = memory_of(pem);
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  int count = 0;
  while (const Certificate one{PEM_read_bio_X509(from.get(), nullptr, no_password, nullptr)}) {
    if (X509_STORE_add_cert(store, one.get()) != 1)
      return fail(ErrorKind::kInvalid, "tls.ca_pem: a certificate can't be used");
    ++count;
  }
  const bool all = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (count > 0 && all) return {};
  return fail(ErrorKind::kInvalid, "tls.ca_pem: " + std::to_string(count) +
                                       " certificates read, then text that is none; allowed: "
                                       "certificates in PEM form");
}

Status identify(SSL_CTX* context, const TlsOptions& options) {
  if (options.certificate_pem.empty() != options.key_pem.empty())
    return fail(ErrorKind::kInvalid, "tls.certificate_pem and tls.key_pem: give both or none");
  if (options.certificate_pem.empty()) return {};
  const Bio chain = memory_of(options.certificate_pem);
  const Certificate leaf(PEM_read_bio_X509(chain.get(), nullptr, no_password, nullptr));
  if (!leaf || SSL_CTX_use_certificate(context, leaf.get()) != 1)
    return fail(ErrorKind::kInvalid, "tls.certificate_pem: no usable certificate in PEM form");
  while (const Certificate next{PEM_read_bio_X509(chain.get(), nullptr, no_password, nullptr)})
    SSL_CTX_add1_chain_cert(context, next.get());
  ERR_clear_error();
  const Bio from = memory_of(options.key_pem);
  const Key key(PEM_read_bio_PrivateKey(from.get(), nullptr, no_password, nullptr));
  if (!key)
    return fail(ErrorKind::kInvalid, "tls.key_pem: no private key in PEM form without a password");
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1)
    return fail(ErrorKind::kInvalid, "tls.key_pem: is not the key of tls.certificate_pem");
  return {};
}

bool is_address(const std::string& name) {
  unsigned char bytes[16];
  return ::inet_pton(AF_INET, name.c_str(), bytes) == 1 ||
         ::inet_pton(AF_INET6, name.c_str(), bytes) == 1;
}

// SSL_set_tlsext_host_name, whose macro has a C cast.
bool set_server_name(SSL* session, const std::string& name) {
  return SSL_ctrl(session, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                  const_cast<char*>(name.c_str())) == 1;
}

std::string bare(std::string name) {
  if (name.size() > 2 && name.front() == '[' && name.back() == ']')
    name = name.substr(1, name.size() - 2);
  if (name.size() > 1 && name.back() == '.') name.pop_back();
  return name;
}

Error verdict(long code, const std::string& name) {
  const std::string what = X509_verify_cert_error_string(code);
  switch (code) {
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return {ErrorKind::kRefused, "server's certificate is not for " + name};
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return {ErrorKind::kRefused, "server's certificate, or one it rests on, has expired"};
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return {ErrorKind::kRefused, "server's certificate is not valid yet: check the clocks"};
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_CERT_UNTRUSTED:
      return {ErrorKind::kRefused,
              "server's certificate is not signed by the given CA (" + what + ")"};
    default:
      return {ErrorKind::kRefused, "server's certificate: " + what};
  }
}

// Alerts by which a server turns down who we say we are.
bool about_us(int reason) {
  switch (reason) {
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
      return true;
    default:
      return false;
  }
}

}  // namespace

Result<TlsContext> TlsContext::create(const TlsOptions& options, const std::string& host) {
  for (const std::string* text : {&options.ca_pem, &options.certificate_pem, &options.key_pem}) {
    if (text->size() > (std::size_t{4} << 20))
      return fail(ErrorKind::kInvalid, "tls: a PEM text is longer than 4 MiB");
  }
  TlsContext out;
  ERR_clear_error();
  out.context_.reset(SSL_CTX_new(TLS_client_method()));
  SSL_CTX* const context = out.context_.get();
  if (context == nullptr) return fail(ErrorKind::kInternal, "tls: OpenSSL makes no context");
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  static constexpr unsigned char kProtocols[] = "\x08http/1.1";
  SSL_CTX_set_alpn_protos(context, kProtocols, sizeof kProtocols - 1);
  // A given certificate is trusted itself, whoever signed it: that is what "the given CA" means.
  X509_VERIFY_PARAM_set_flags(SSL_CTX_get0_param(context), X509_V_FLAG_PARTIAL_CHAIN);
  ARCH_TRY_VOID(trust(context, options.ca_pem));
  ARCH_TRY_VOID(identify(context, options));
  out.name_ = bare(options.server_name.empty() ? host : options.server_name);
  out.is_address_ = is_address(out.name_);
  if (out.name_.empty()) return fail(ErrorKind::kInvalid, "tls.server_name: no host to check");
  ERR_clear_error();
  return out;
}

SSL* TlsContext::open(int fd) const {
  std::unique_ptr<SSL, Release<SSL_free>> session(SSL_new(context_.get()));
  BIO* const bio = BIO_new(socket_method());
  if (!session || bio == nullptr) {
    BIO_free(bio);
    return nullptr;
  }
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)));
  BIO_set_init(bio, 1);
  SSL_set_bio(session.get(), bio, bio);
  X509_VERIFY_PARAM* const rules = SSL_get0_param(session.get());
  X509_VERIFY_PARAM_set_hostflags(
      rules, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  const bool named = is_address_
                         ? X509_VERIFY_PARAM_set1_ip_asc(rules, name_.c_str()) == 1
                         : X509_VERIFY_PARAM_set1_host(rules, name_.data(), name_.size()) == 1 &&
                               set_server_name(session.get(), name_);
  if (!named) return nullptr;
  SSL_set_connect_state(session.get());
  return session.release();
}

Error tls_error(const SSL* session, const std::string& name) {
  const unsigned long code = ERR_peek_last_error();
  const int reason = ERR_GET_REASON(code);
  const bool ours = ERR_GET_LIB(code) == ERR_LIB_SSL;
  const char* const text = ERR_reason_error_string(code);
  const std::string why = text == nullptr ? "connection lost" : text;
  ERR_clear_error();
  if (ours && reason == SSL_R_CERTIFICATE_VERIFY_FAILED)
    return verdict(SSL_get_verify_result(session), name);
  if (ours && about_us(reason))
    return {ErrorKind::kRefused, "server refused us: check client certificate (" + why + ")"};
  if (ours && (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST))
    return {ErrorKind::kUnavailable, "server does not speak TLS on this port"};
  if (ours &&
      (reason == SSL_R_TLSV1_ALERT_PROTOCOL_VERSION || reason == SSL_R_UNSUPPORTED_PROTOCOL))
    return {ErrorKind::kRefused, "server speaks no TLS 1.2 or later"};
  return {ErrorKind::kUnavailable, "TLS: " + why};
}

}  // namespace archipelago::http
