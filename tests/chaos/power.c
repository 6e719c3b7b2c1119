/* Watches what a process has the disk promise: every fsync is noted with what it covers.

   Loaded with LD_PRELOAD into servers and engines. TINKEX_POWER_ROOT is the folder watched,
   TINKEX_POWER_NOTES where notes go. A file's sync copies its bytes to NOTES/<inode>-<birth>; a folder's
   sync writes the names in it, each with the inode and birth time of what it names. What has no note, or
   was changed after it, would not be there after a power cut. The disk itself is not waited for.
*/
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    abort(); /* a note that is missing would be a promise that nobody gave */
}

static int identity(int folder, const char *name, int flags, char *into, mode_t *mode) {
    struct statx found;
    flags |= AT_SYMLINK_NOFOLLOW;
    if (statx(folder, name, flags, STATX_INO | STATX_BTIME | STATX_TYPE, &found)) return -1;
    snprintf(into, 64, "%llu-%lld.%09u", (unsigned long long)found.stx_ino,
             (long long)found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
    *mode = found.stx_mode;
    return 0;
}

/* For the test that cuts the power: "f" or "d", a space and the identity; nothing if there is nothing. */
void power_identity(const char *path, char *into) {
    mode_t mode;
    into[0] = 0;
    if (identity(AT_FDCWD, path, 0, into + 2, &mode)) return;
    into[0] = S_ISDIR(mode) ? 'd' : 'f';
    into[1] = ' ';
}

static void note_file(int from, int to) {
    /* The watched descriptor may be write-only, and its position is not ours to move. */
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", from);
    int again = open(path, O_RDONLY | O_CLOEXEC);
    if (again < 0) fail("power: open");
    while (1) {
        ssize_t sent = sendfile(to, again, NULL, 1 << 30);
        if (sent < 0) fail("power: copy");
        if (sent == 0) break;
    }
    close(again);
}

static void note_folder(int from, int to) {
    int again = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = again < 0 ? NULL : fdopendir(again);
    if (!folder) fail("power: opendir");
    struct dirent *entry;
    while ((entry = readdir(folder))) {
        char id[64];
        mode_t mode;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (identity(again, entry->d_name, 0, id, &mode)) continue; /* gone meanwhile */
        if (dprintf(to, "%c %s %s\n", S_ISDIR(mode) ? 'd' : 'f', id, entry->d_name) < 0) fail("power: write");
    }
    closedir(folder);
}

static int noted(int file) {
    const char *root = getenv("TINKEX_POWER_ROOT"), *notes = getenv("TINKEX_POWER_NOTES");
    char link[64], path[PATH_MAX], id[64], aside[PATH_MAX], place[PATH_MAX];
    mode_t mode;
    if (!root || !notes) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0; /* not open: the real call says so */
    path[length] = 0;
    size_t prefix = strlen(root);
    if (strncmp(path, root, prefix) || (path[prefix] && path[prefix] != '/')) return 0;
    if (identity(file, "", AT_EMPTY_PATH, id, &mode)) fail("power: statx");
    snprintf(aside, sizeof aside, "%s/.%s.%ld", notes, id, (long)syscall(SYS_gettid));
    snprintf(place, sizeof place, "%s/%s", notes, id);
    int to = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (to < 0) fail("power: create");
    if (S_ISDIR(mode)) note_folder(file, to);
    else note_file(file, to);
    close(to);
    if (rename(aside, place)) fail("power: rename");
    return 1;
}

int fsync(int file) { return noted(file) ? 0 : (int)syscall(SYS_fsync, file); }
int fdatasync(int file) { return noted(file) ? 0 : (int)syscall(SYS_fdatasync, file); }
