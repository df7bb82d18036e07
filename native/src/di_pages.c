#if defined(__linux__) && !defined(_DEFAULT_SOURCE)
#define _DEFAULT_SOURCE       /* madvise */
#endif
#include "di_pages.h"

#include <stdint.h>
#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define LINE ((size_t)64)
#define LARGE_PAGE ((size_t)2 << 20)
#define FIRST_CHUNK ((size_t)64 << 10)
#define LAST_USUAL_CHUNK ((size_t)256 << 10)
#define LARGEST_CHUNK ((size_t)8 << 20)
#if defined(__SANITIZE_ADDRESS__)
enum { ARE_APART = 1 };
#else
enum { ARE_APART = 0 };
#endif

struct di_pages_chunk {
    di_pages_chunk *next;
};

static char *aligned(char *at, size_t to) { return at + (to - (uintptr_t)at % to) % to; }

/* A hint: where it is refused, or means nothing, pages are of the usual size. */
static void ask_for_large_pages(char *at, size_t bytes)
{
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    (void)madvise(at, bytes, MADV_HUGEPAGE);
#else
    (void)at;
    (void)bytes;
#endif
}

static int add_chunk(di_pages *p, size_t bytes)
{
    size_t to = bytes < LARGE_PAGE ? LINE : LARGE_PAGE;
    if (bytes > SIZE_MAX - 2 * LARGE_PAGE) return -1;
    di_pages_chunk *chunk = calloc(1, bytes + sizeof *chunk + to);
    if (!chunk) return -1;
    chunk->next = p->chunks;
    p->chunks = chunk;
    p->at = aligned((char *)(chunk + 1), to);
    p->left = bytes;
    if (to == LARGE_PAGE) ask_for_large_pages(p->at, bytes);
    return 0;
}

/* Chunks double up to a bound, so that the end of one that is left unused is a small part of all. Those between are left
 * out: half a megabyte and one on usual pages would be a fifth of the requests of a large core. */
static int grow(di_pages *p, size_t size)
{
    size_t bytes = p->chunk_bytes ? p->chunk_bytes : FIRST_CHUNK / 2;
    do bytes *= 2;
    while (bytes < size && bytes < LARGEST_CHUNK);
    if (bytes > LAST_USUAL_CHUNK && bytes < LARGE_PAGE) bytes = LARGE_PAGE;
    if (bytes > LARGEST_CHUNK) bytes = LARGEST_CHUNK;
    if (add_chunk(p, bytes < size || ARE_APART ? size : bytes)) return -1;
    p->chunk_bytes = bytes;
    return 0;
}

void *di_pages_take(di_pages *p, size_t size)
{
    if (size > SIZE_MAX - LINE) return NULL;
    size = size ? (size + LINE - 1) / LINE * LINE : LINE;
    if ((p->left < size || ARE_APART) && grow(p, size)) return NULL;
    char *taken = p->at;
    p->at += size;
    p->left -= size;
    return taken;
}

void di_pages_free(di_pages *p)
{
    while (p->chunks) {
        di_pages_chunk *next = p->chunks->next;
        free(p->chunks);
        p->chunks = next;
    }
    *p = (di_pages){0};
}
