/* copy.h - copying between registered memory and its arena */
#ifndef GW_COPY_H
#define GW_COPY_H

#include <stddef.h>

/* As memcpy, at the speed that memory allows for spans that no cache holds. */
void gw_copy(void *to, const void *from, size_t bytes);

#endif
