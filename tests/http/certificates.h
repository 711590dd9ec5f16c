#pragma once
// Certificates made on the spot: an authority, and leaves with the names and dates a test wants.
#include <memory>
#include <string>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

namespace archipelago::http::testing {

template <auto release>
struct Release {
  template <class T>
  void operator()(T* object) const {
    release(object);
  }
};

struct Identity {
  std::shared_ptr<X509> certificate;
  std::shared_ptr<EVP_PKEY> key;

  [[nodiscard]] std::string certificate_pem() const {
    return text([&](BIO* to) { return PEM_write_bio_X509(to, certificate.get()); });
  }
  [[nodiscard]] std::string key_pem() const {
    return text([&](BIO* to) {
      return PEM_write_bio_PrivateKey(to, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
  }

 private:
  template <class Write>
  static std::string text(Write write) {
    const std::unique_ptr<BIO, Release<BIO_free>> to(BIO_new(BIO_s_mem()));
    if (write(to.get()) != 1) return {};
    char* data = nullptr;
    const long size = BIO_get_mem_data(to.get(), &data);
    return {data, static_cast<std::size_t>(size)};
  }
};

struct Wanted {
  std::string common_name = "archipelago test";
  std::string alternative_names{};   // "IP:127.0.0.1,DNS:a.example"; empty: none
  long from_s = -3600, to_s = 3600;  // relative to now
  bool authority = false;
};

inline bool extend(X509* to, X509* issuer, int what, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, to, nullptr, nullptr, 0);
  X509_EXTENSION* made = X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str());
  if (made == nullptr) return false;
  const bool ok = X509_add_ext(to, made, -1) == 1;
  X509_EXTENSION_free(made);
  return ok;
}

// Signed by `issuer`, or by itself. An empty certificate means that OpenSSL refused.
inline Identity make_identity(const Wanted& wanted, const Identity* issuer = nullptr) {
  static long serial = 1;
  Identity out;
  out.key.reset(EVP_EC_gen("P-256"), EVP_PKEY_free);
  out.certificate.reset(X509_new(), X509_free);
  X509* const x = out.certificate.get();
  X509_set_version(x, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(x), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(x), wanted.from_s);
  X509_gmtime_adj(X509_getm_notAfter(x), wanted.to_s);
  X509_set_pubkey(x, out.key.get());
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(wanted.common_name.c_str()), -1,
                             -1, 0);
  X509* const by = issuer == nullptr ? x : issuer->certificate.get();
  X509_set_issuer_name(x, X509_get_subject_name(by));
  bool ok = extend(x, by, NID_basic_constraints,
                   wanted.authority ? "critical,CA:TRUE" : "critical,CA:FALSE");
  if (!wanted.alternative_names.empty())
    ok = ok && extend(x, by, NID_subject_alt_name, wanted.alternative_names);
  EVP_PKEY* const with = issuer == nullptr ? out.key.get() : issuer->key.get();
  if (!ok || X509_sign(x, with, EVP_sha256()) == 0) out.certificate.reset();
  return out;
}

}  // namespace archipelago::http::testing
