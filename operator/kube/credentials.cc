#include "operator/kube/credentials.h"

#include <algorithm>
#include <string_view>

#include "common/base/files.h"

namespace archipelago::op::kube {
namespace {
constexpr std::uint64_t kMaxFile = 1U << 20;

// A file's text without white space around it; empty is an error: it is being replaced.
Result<std::string> read_text(const std::filesystem::path& file) {
  ARCH_TRY(std::string text, read_file(file, kMaxFile));
  const auto blank = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!text.empty() && blank(text.back())) text.pop_back();
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), blank));
  if (text.empty()) return fail(ErrorKind::kInvalid, file.string() + ": is empty");
  return text;
}

Status read_pem(const PemSource& source, std::string_view label, std::string& out) {
  std::string text = source.text;
  if (!source.file.empty()) {
    ARCH_TRY(text, read_text(source.file));
  }
  if (!text.empty() && text.find(label) == std::string::npos)
    return fail(ErrorKind::kInvalid,
                (source.file.empty() ? "the given data" : source.file.string()) +
                    ": is no PEM text (" + std::string(label) + " is missing)");
  out = std::move(text);
  return {};
}

// It becomes a header: nothing that could end one may be in it.
Status check_token(const std::string& token, const std::string& where) {
  for (const char c : token)
    if (c <= ' ' || c > '~')
      return fail(ErrorKind::kInvalid,
                  where + ": the token has a character that no token may have");
  return {};
}
}  // namespace

CredentialStore::CredentialStore(CredentialSource source, Duration max_age, const Clock& clock,
                                 Logger log)
    : source_(std::move(source)), max_age_(max_age), clock_(clock), log_(std::move(log)) {}

Status CredentialStore::read(Credentials& into) const {
  std::string token = source_.token;
  if (!source_.token_file.empty()) {
    ARCH_TRY(token, read_text(source_.token_file));
  }
  ARCH_TRY_VOID(
      check_token(token, source_.token_file.empty() ? "token" : source_.token_file.string()));
  into.bearer = std::move(token);
  ARCH_TRY_VOID(read_pem(source_.ca, "-----BEGIN CERTIFICATE", into.ca_pem));
  ARCH_TRY_VOID(read_pem(source_.certificate, "-----BEGIN CERTIFICATE", into.certificate_pem));
  return read_pem(source_.key, "PRIVATE KEY", into.key_pem);
}

Status CredentialStore::load() {
  std::lock_guard lock(mutex_);
  ARCH_TRY_VOID(read(good_));
  read_at_ = clock_.now();
  return {};
}

// Each part by itself: a token that is being replaced must not keep a new CA out.
void CredentialStore::reload() {
  read_at_ = clock_.now();
  Credentials next = good_;
  const Status all = read(next);
  if (!all)
    log_.warn("credentials not read, the last good ones stay", {{"error", all.error().describe()}});
  if (!all && next.bearer == good_.bearer) {
    std::string pem;
    if (read_pem(source_.ca, "-----BEGIN CERTIFICATE", pem)) next.ca_pem = std::move(pem);
  }
  // A certificate without its key would be of no use.
  if (!all) {
    next.certificate_pem = good_.certificate_pem;
    next.key_pem = good_.key_pem;
  }
  if (next.ca_pem != good_.ca_pem || next.certificate_pem != good_.certificate_pem ||
      next.key_pem != good_.key_pem) {
    next.generation = good_.generation + 1;
    log_.info("certificates changed: connections are made anew");
  }
  good_ = std::move(next);
}

Credentials CredentialStore::current() {
  std::lock_guard lock(mutex_);
  if (clock_.now() - read_at_ >= max_age_) reload();
  return good_;
}

Credentials CredentialStore::refresh() {
  std::lock_guard lock(mutex_);
  if (clock_.now() - read_at_ >= seconds(1)) reload();
  return good_;
}

}  // namespace archipelago::op::kube
