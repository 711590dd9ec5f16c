#include "common/http/head.h"

#include <catch2/catch.hpp>

#include "common/http/endpoint.h"

namespace archipelago::http {
namespace {

int status_of(const std::string& text, Head* head) {
  const auto error = parse_head(text, HeadLimits{}, head);
  return error ? error->status : 200;
}

TEST_CASE("heads: what frames a body is strict") {
  const auto [fields, status] = GENERATE(table<std::string, int>({
      {"Content-Length: 10\r\n", 200},
      {"content-length:  10  \r\n", 200},
      {"Content-Length: 9223372036854775807\r\n", 200},
      {"Content-Length: 9223372036854775808\r\n", 400},
      {"Content-Length: 99999999999999999999\r\n", 400},
      {"Content-Length: -1\r\n", 400},
      {"Content-Length: 0x10\r\n", 400},
      {"Content-Length: %31\r\n", 400},
      {"Content-Length: \r\n", 400},
      {"Content-Length: 1e3\r\n", 400},
      {"Content-Length: 5\r\nContent-Length: 6\r\n", 400},
      {"Content-Length: 5\r\nContent-Length: 5\r\n", 400},
      {"Content-Length : 5\r\n", 400},
      {"Content-Length: 5\r\n folded: 1\r\n", 400},
      {"Transfer-Encoding: chunked\r\n", 400},
      {"Transfer-Encoding: identity\r\nContent-Length: 5\r\n", 400},
      {"Content-Encoding: gzip\r\n", 415},
      {"Content-Encoding: br\r\n", 415},
      {"Content-Encoding: gzip, gzip\r\n", 415},
      {"Content-Encoding: identity\r\n", 200},
      {"Content-Type: multipart/form-data; boundary=x\r\n", 415},
      {"no colon\r\n", 400},
      {": empty\r\n", 400},
      {std::string("X: a\0b\r\n", 8), 400},
  }));
  CAPTURE(fields);
  Head head;
  CHECK(status_of("PUT /x HTTP/1.1\r\n" + fields + "\r\n", &head) == status);
}

TEST_CASE("heads: request lines") {
  const auto [line, status] = GENERATE(table<std::string, int>({
      {"GET / HTTP/1.1", 200},
      {"GET / HTTP/1.0", 200},
      {"GET / HTTP/2.0", 505},
      {"GET /", 400},
      {"GET  / HTTP/1.1", 400},
      {"GET / HTTP/1.1 x", 400},
      {"GET http://a/ HTTP/1.1", 400},
      {"G{}T / HTTP/1.1", 400},
      {"", 400},
      {"GET /" + std::string(5000, 'a') + " HTTP/1.1", 414},
      {"GET /\x01 HTTP/1.1", 400},
  }));
  CAPTURE(line);
  Head head;
  CHECK(status_of(line + "\r\n\r\n", &head) == status);
}

TEST_CASE("heads: too many fields, keep-alive, first of repeated") {
  Head head;
  std::string many = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 101; ++i) many += "X-" + std::to_string(i) + ": 1\r\n";
  CHECK(status_of(many + "\r\n", &head) == 431);
  REQUIRE(status_of("GET /a?b=c HTTP/1.1\r\nX-A: 1\r\nx-a: 2\r\nConnection: Close\r\n\r\n",
                    &head) == 200);
  CHECK(head.headers.at("x-a") == "1");
  CHECK(head.target == "/a?b=c");
  CHECK_FALSE(head.keep_alive);
  CHECK_FALSE(head.content_length.has_value());
}

TEST_CASE("find_head_end sees an end that straddles two pieces") {
  CHECK(find_head_end("GET / HTTP/1.1\r\n\r\nrest") == 18);
  CHECK(find_head_end("GET / HTTP/1.1\r\n\r\n", 15) == 18);
  CHECK(find_head_end("GET / HTTP/1.1\r\n", 0) == std::string_view::npos);
}

TEST_CASE("endpoints") {
  CHECK(parse_endpoint("10.0.0.1:80")->text() == "10.0.0.1:80");
  CHECK(parse_endpoint("[::1]:0")->text() == "[::1]:0");
  CHECK(parse_endpoint("http://host:8080/")->text() == "host:8080");
  CHECK(parse_endpoint(":7", "0.0.0.0")->text() == "0.0.0.0:7");
  for (const char* bad :
       {"host", "host:", "host:70000", "::1:80", "a b:1", "host:-1", "host:1x", ""}) {
    CAPTURE(bad);
    REQUIRE_FALSE(parse_endpoint(bad));
    CHECK(parse_endpoint(bad).error().kind == ErrorKind::kInvalid);
  }
  CHECK(url_encode("a/b c%") == "a%2Fb%20c%25");
}

}  // namespace
}  // namespace archipelago::http
