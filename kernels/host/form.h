/* form.h - one SIMD form: the arithmetic and the loops of every type, and the form's row of the table
 *
 * Included last by each form_*.c, which has set GW_FORM_NAME, GW_FORM_USABLE, GW_FORM_ROW (the row's name),
 * and has defined load_f16 and store_f16.
 */

enum {
    GW_FUSED_RANKS = 4,   /* the most inputs that have a loop of their own */
    GW_STRIP_VECTORS = 4, /* accumulators held in registers; pairs take twice as many */
};

#define GW_KIND f32
#define GW_ACC  gw_vf32_t
#define GW_BITS gw_vu32_t
#define GW_LANE float
#define GW_QNAN UINT32_C(0x7fc00000)
#include "host/arith.h"

#define GW_KIND f64
#define GW_ACC  gw_vf64_t
#define GW_BITS gw_vu64_t
#define GW_LANE double
#define GW_QNAN UINT64_C(0x7ff8000000000000)
#include "host/arith.h"

#define GW_KIND i8
#define GW_ACC  gw_vi8_t
#define GW_BITS gw_vu8_t
#define GW_LANE int8_t
#include "host/arith.h"

#define GW_KIND u8
#define GW_ACC  gw_vu8_t
#define GW_BITS gw_vu8_t
#define GW_LANE uint8_t
#include "host/arith.h"

#define GW_KIND i32
#define GW_ACC  gw_vi32_t
#define GW_BITS gw_vu32_t
#define GW_LANE int32_t
#include "host/arith.h"

#define GW_KIND i64
#define GW_ACC  gw_vi64_t
#define GW_BITS gw_vu64_t
#define GW_LANE int64_t
#include "host/arith.h"

GW_INLINE gw_vpair_t combine_f16(gw_redop_t op, gw_vpair_t x, gw_vpair_t y) {
    return (gw_vpair_t){combine_f32(op, x.a, y.a), combine_f32(op, x.b, y.b)};
}

GW_INLINE gw_vpair_t finish_f16(gw_redop_t op, gw_vpair_t v, unsigned n_in) {
    return (gw_vpair_t){finish_f32(op, v.a, n_in), finish_f32(op, v.b, n_in)};
}

#define combine_bf16 combine_f16
#define finish_bf16  finish_f16

#define GW_KIND f32
#define GW_ELEM float
#define GW_ACC  gw_vf32_t
#include "host/kind.h"

#define GW_KIND f64
#define GW_ELEM double
#define GW_ACC  gw_vf64_t
#include "host/kind.h"

#define GW_KIND f16
#define GW_ELEM uint16_t
#define GW_ACC  gw_vpair_t
#include "host/kind.h"

#define GW_KIND bf16
#define GW_ELEM uint16_t
#define GW_ACC  gw_vpair_t
#include "host/kind.h"

#define GW_KIND i8
#define GW_ELEM int8_t
#define GW_ACC  gw_vi8_t
#define GW_INTEGER
#include "host/kind.h"

#define GW_KIND u8
#define GW_ELEM uint8_t
#define GW_ACC  gw_vu8_t
#define GW_INTEGER
#include "host/kind.h"

#define GW_KIND i32
#define GW_ELEM int32_t
#define GW_ACC  gw_vi32_t
#define GW_INTEGER
#include "host/kind.h"

#define GW_KIND i64
#define GW_ELEM int64_t
#define GW_ACC  gw_vi64_t
#define GW_INTEGER
#include "host/kind.h"

const gw_kernel_form_t GW_FORM_ROW = {
    .name = GW_FORM_NAME,
    .usable = GW_FORM_USABLE,
    .reduce =
        {
            [GW_F32] = reduce_f32,
            [GW_F64] = reduce_f64,
            [GW_F16] = reduce_f16,
            [GW_BF16] = reduce_bf16,
            [GW_I8] = reduce_i8,
            [GW_U8] = reduce_u8,
            [GW_I32] = reduce_i32,
            [GW_I64] = reduce_i64,
        },
};
