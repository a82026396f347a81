/* The digest of engine bytes, and SHA-256 for what people compare.
 *
 * Loads share by digest alone, since the bytes of the first load may be gone when the second one comes. So
 * nobody may be able to prepare two different engines with one digest: it is keyed with a secret drawn once
 * per process, which leaves this file only inside OpenSSL.
 *
 * keyed: AES-GMAC over each chunk, then, under a second key, over the chunks' tags, the parts' sizes and
 * their count, from which the parts can be told apart. A pair of different inputs collides with probability
 * at most (blocks of a chunk + blocks of that sum + 2) / 2^128. The chunks are fixed, so the digest is the
 * same however many threads took part; a thread that cannot be started is done without. fast: XXH3-128 under
 * a random 192-byte secret: against accidents only. Under xxhash's published default secret a second preimage
 * takes one scan of the file, so that secret is never used.
 *
 * The lock covers drawing the secret and fetching the algorithm and is held around fork, so that a child
 * finds neither half done; the child goes on with its parent's secret. OpenSSL's error queue is the host's:
 * it is left as it was found.
 */
#include "base.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
  CHUNK_SIZE = 8 << 20, /* bytes: 1 ms of work and more, so that a thread's start does not count */
  TAG_SIZE = sizeof(((struct td_digest *)0)->tag),
  THREADS_MAX = 4, /* beyond it memory is the limit */
  KEY_SIZE = 16,
  NONCE_SIZE = 12,
};

struct secret {
  unsigned char chunk_key[KEY_SIZE];
  unsigned char sum_key[KEY_SIZE];
  unsigned char nonce[NONCE_SIZE]; /* fixed for the process: tags are compared, never shown */
  unsigned char fast[192];
};
_Static_assert(sizeof(struct secret) <= 256, "getentropy gives at most 256 bytes at once");

static struct td_mutex identity_lock;
static struct secret secret; /* guarded by identity_lock; constant once drawn */
static bool secret_drawn;    /* guarded by identity_lock */
static EVP_MAC *gmac;        /* guarded by identity_lock; constant once fetched */
static EVP_MD *sha256;       /* likewise */

static void lock_identity(void) {
  td_mutex_lock(&identity_lock);
}

static void unlock_identity(void) {
  td_mutex_unlock(&identity_lock);
}

/* Before any thread can be inside: a fork that has begun runs no handler registered meanwhile. */
__attribute__((constructor)) static void guard_fork(void) {
  td_fork_handlers(lock_identity, unlock_identity, unlock_identity);
}

/* OpenSSL says out of memory only through its queue. */
static enum tandem_status openssl_status(void) {
  return ERR_GET_REASON(ERR_peek_last_error()) == ERR_R_MALLOC_FAILURE ? TANDEM_OUT_OF_MEMORY
                                                                       : TANDEM_INTERNAL;
}

static enum tandem_status fail_openssl(struct tandem_error *error, enum tandem_status status,
                                       const char *what) {
  if (status == TANDEM_OUT_OF_MEMORY)
    return td_fail(error, status, "out of host memory in OpenSSL while computing %s", what);
  return td_fail(error, TANDEM_INTERNAL,
                 "OpenSSL cannot compute %s; its default provider must offer GMAC, AES-128-GCM and SHA2-256: "
                 "see openssl list -providers",
                 what);
}

static bool start_tag(EVP_MAC_CTX *context, const unsigned char *key, const struct secret *with) {
  unsigned char nonce[NONCE_SIZE];
  memcpy(nonce, with->nonce, sizeof(nonce));
  OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_CIPHER, (char[]){"AES-128-GCM"}, 0),
      OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_IV, nonce, sizeof(nonce)),
      OSSL_PARAM_construct_end(),
  };
  return EVP_MAC_init(context, key, KEY_SIZE, parameters) == 1;
}

/* One tag is begun here although nobody needs it: it makes OpenSSL look the cipher up, under locks of its own
 * that a child forked meanwhile would find taken for ever. Later looks only read. */
static bool fetch_gmac_locked(void) {
  EVP_MAC *fetched = EVP_MAC_fetch(NULL, "GMAC", NULL);
  EVP_MAC_CTX *context = fetched ? EVP_MAC_CTX_new(fetched) : NULL;
  bool ok = context && start_tag(context, secret.sum_key, &secret);
  EVP_MAC_CTX_free(context);
  if (ok)
    gmac = fetched;
  else
    EVP_MAC_free(fetched);
  return ok;
}

static enum tandem_status prepare_locked(void) {
  if (!secret_drawn) {
    if (getentropy(&secret, sizeof(secret)) != 0)
      return TANDEM_UNAVAILABLE;
    secret_drawn = true;
  }
  return gmac || fetch_gmac_locked() ? TANDEM_OK : openssl_status();
}

/* A copy of the process's secret, and the algorithm. UNAVAILABLE: no random bytes. No failure is remembered.
 * Sets a mark in OpenSSL's error queue, which the caller pops: OpenSSL's first call belongs under the lock.
 */
static enum tandem_status prepare(struct secret *copy, EVP_MAC **mac) {
  td_mutex_lock(&identity_lock);
  ERR_set_mark();
  enum tandem_status status = prepare_locked();
  *copy = secret;
  *mac = gmac;
  td_mutex_unlock(&identity_lock);
  return status;
}

/* Likewise for SHA-256; NULL on failure. */
static const EVP_MD *prepare_sha256(void) {
  td_mutex_lock(&identity_lock);
  ERR_set_mark();
  if (!sha256)
    sha256 = EVP_MD_fetch(NULL, "SHA2-256", NULL);
  const EVP_MD *fetched = sha256;
  td_mutex_unlock(&identity_lock);
  return fetched;
}

static bool finish_tag(EVP_MAC_CTX *context, unsigned char tag[TAG_SIZE]) {
  size_t length = 0;
  return EVP_MAC_final(context, tag, &length, TAG_SIZE) == 1 && length == TAG_SIZE;
}

struct chunk {
  const unsigned char *data;
  size_t size;
  unsigned char tag[TAG_SIZE];
};

struct work {
  const struct secret *secret;
  EVP_MAC *mac;
  struct chunk *chunks; /* owned */
  size_t chunk_count;
  _Atomic size_t next;         /* chunk that nobody took yet */
  _Atomic unsigned int status; /* enum tandem_status; the last failure */
};

static bool tag_chunks(struct work *work, EVP_MAC_CTX *context) {
  size_t i;
  while ((i = atomic_fetch_add(&work->next, 1)) < work->chunk_count) {
    struct chunk *chunk = &work->chunks[i];
    if (!start_tag(context, work->secret->chunk_key, work->secret) ||
        EVP_MAC_update(context, chunk->data, chunk->size) != 1 || !finish_tag(context, chunk->tag))
      return false;
  }
  return true;
}

static void run_worker(void *argument) {
  struct work *work = argument;
  ERR_set_mark();
  EVP_MAC_CTX *context = EVP_MAC_CTX_new(work->mac);
  if (!context || !tag_chunks(work, context))
    atomic_store(&work->status, openssl_status());
  EVP_MAC_CTX_free(context);
  ERR_pop_to_mark();
}

static void tag_in_parallel(struct work *work) {
  struct td_thread threads[THREADS_MAX - 1];
  unsigned wanted = td_cpu_count(), started = 0;
  if (wanted > THREADS_MAX)
    wanted = THREADS_MAX;
  if (wanted > work->chunk_count)
    wanted = (unsigned)work->chunk_count;
  while (started + 1 < wanted && td_thread_start(&threads[started], run_worker, work))
    started++;
  run_worker(work);
  for (unsigned i = 0; i < started; i++)
    td_thread_join(&threads[i]);
}

static bool add_number(EVP_MAC_CTX *context, uint64_t number) {
  return EVP_MAC_update(context, (const unsigned char *)&number, sizeof(number)) == 1;
}

/* The tag over the chunks' tags, the parts' sizes and their count. */
static enum tandem_status tag_sum(const struct work *work, const struct tandem_part *parts, size_t count,
                                  unsigned char tag[TAG_SIZE]) {
  EVP_MAC_CTX *context = EVP_MAC_CTX_new(work->mac);
  bool ok = context && start_tag(context, work->secret->sum_key, work->secret);
  for (size_t i = 0; ok && i < work->chunk_count; i++)
    ok = EVP_MAC_update(context, work->chunks[i].tag, TAG_SIZE) == 1;
  for (size_t i = 0; ok && i < count; i++)
    ok = add_number(context, parts[i].size);
  ok = ok && add_number(context, count) && finish_tag(context, tag);
  enum tandem_status status = ok ? TANDEM_OK : openssl_status();
  EVP_MAC_CTX_free(context);
  return status;
}

static enum tandem_status digest_keyed(const struct tandem_part *parts, size_t count,
                                       const struct secret *with, EVP_MAC *mac, struct td_digest *digest) {
  struct work work = {.secret = with, .mac = mac};
  for (size_t i = 0; i < count; i++)
    work.chunk_count += parts[i].size / CHUNK_SIZE + (parts[i].size % CHUNK_SIZE != 0);
  work.chunks = td_alloc(work.chunk_count * sizeof(*work.chunks));
  if (!work.chunks)
    return TANDEM_OUT_OF_MEMORY;
  struct chunk *chunk = work.chunks;
  for (size_t i = 0; i < count; i++)
    for (size_t at = 0; at < parts[i].size; at += chunk++->size) {
      chunk->data = (const unsigned char *)parts[i].data + at;
      chunk->size = parts[i].size - at < CHUNK_SIZE ? parts[i].size - at : CHUNK_SIZE;
    }
  if (work.chunk_count > 0)
    tag_in_parallel(&work);
  enum tandem_status status = (enum tandem_status)atomic_load(&work.status);
  if (status == TANDEM_OK)
    status = tag_sum(&work, parts, count, digest->tag);
  td_free(work.chunks);
  return status;
}

static enum tandem_status digest_fast(const struct tandem_part *parts, size_t count,
                                      const struct secret *with, struct td_digest *digest) {
  XXH128_canonical_t canonical;
  XXH3_state_t *state = XXH3_createState();
  if (!state)
    return TANDEM_OUT_OF_MEMORY;
  XXH3_128bits_reset_withSecret(state, with->fast, sizeof(with->fast));
  for (size_t i = 0; i < count; i++) {
    uint64_t size = parts[i].size;
    XXH3_128bits_update(state, parts[i].data, parts[i].size);
    XXH3_128bits_update(state, &size, sizeof(size));
  }
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
  XXH3_freeState(state);
  memcpy(digest->tag, canonical.digest, TAG_SIZE);
  return TANDEM_OK;
}

enum tandem_status td_digest_parts(const struct tandem_part *parts, size_t count, enum td_identity kind,
                                   struct td_digest *digest, struct tandem_error *error) {
  struct secret with;
  EVP_MAC *mac;
  memset(digest, 0, sizeof(*digest));
  enum tandem_status status = prepare(&with, &mac);
  if (status == TANDEM_OK && kind == TD_IDENTITY_FAST)
    status = digest_fast(parts, count, &with, digest);
  else if (status == TANDEM_OK)
    status = digest_keyed(parts, count, &with, mac, digest);
  ERR_pop_to_mark();
  OPENSSL_cleanse(&with, sizeof(with));
  if (status == TANDEM_UNAVAILABLE)
    return td_fail(error, TANDEM_INTERNAL,
                   "the system gives no random bytes (getentropy) for the key of the engine digests");
  if (status != TANDEM_OK)
    return fail_openssl(error, status, "the digest of the engine bytes");
  return TANDEM_OK;
}

enum tandem_status td_digest(const void *data, size_t size, enum td_identity kind, struct td_digest *digest,
                             struct tandem_error *error) {
  return td_digest_parts(&(struct tandem_part){data, size}, 1, kind, digest, error);
}

static bool sum_parts(const EVP_MD *algorithm, const struct tandem_part *parts, size_t count,
                      unsigned char sum[32]) {
  EVP_MD_CTX *context = EVP_MD_CTX_new();
  bool ok = context && EVP_DigestInit_ex2(context, algorithm, NULL) == 1;
  for (size_t i = 0; ok && i < count; i++)
    ok = EVP_DigestUpdate(context, parts[i].data, parts[i].size) == 1;
  ok = ok && EVP_DigestFinal_ex(context, sum, NULL) == 1;
  EVP_MD_CTX_free(context);
  return ok;
}

enum tandem_status td_sha256_parts(const struct tandem_part *parts, size_t count, char hex[65],
                                   struct tandem_error *error) {
  static const char digits[] = "0123456789abcdef";
  unsigned char sum[32];
  const EVP_MD *algorithm = prepare_sha256();
  bool ok = algorithm && sum_parts(algorithm, parts, count, sum);
  enum tandem_status status = ok ? TANDEM_OK : openssl_status();
  ERR_pop_to_mark();
  hex[0] = '\0';
  if (!ok)
    return fail_openssl(error, status, "SHA-256");
  for (size_t i = 0; i < sizeof(sum); i++) {
    hex[2 * i] = digits[sum[i] >> 4];
    hex[2 * i + 1] = digits[sum[i] & 15];
  }
  hex[64] = '\0';
  td_clear(error);
  return TANDEM_OK;
}

enum tandem_status tandem_sha256(const void *data, size_t size, char hex[65], struct tandem_error *error) {
  if (!hex)
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "SHA-256 has nowhere to go: hex is NULL");
  hex[0] = '\0';
  if (!data && size > 0)
    return td_fail(error, TANDEM_INVALID_ARGUMENT, "SHA-256 of %zu bytes at NULL", size);
  int state = td_cancel_disable();
  enum tandem_status status = td_sha256_parts(&(struct tandem_part){data, size}, 1, hex, error);
  td_cancel_restore(state);
  return status;
}
