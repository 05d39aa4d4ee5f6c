"""What a traveller pays, or gets back, for moving to another fare."""

from decimal import ROUND_HALF_UP, Decimal

CHANGE_FEES = {"basic": "60", "silver": "35", "gold": "0", "platinum": "0"}
NOT_REFUNDABLE = {"light"}


def cents(amount: Decimal) -> float:
    return float(amount.quantize(Decimal("0.01"), rounding=ROUND_HALF_UP))


def fare_difference(old_fare: float, new_fare: float, fare_class: str = "flex", currency: str = "EUR") -> dict:
    """Price a change.

    Args:
        old_fare: what was paid.
        new_fare: what the new flight costs today.
        fare_class: light, standard or flex, of the old ticket.
        currency: of both fares.
    """
    if old_fare < 0 or new_fare < 0:
        raise ValueError("a fare cannot be negative")
    tier = context.state.get("traveller", {}).get("tier", "basic")
    fee = Decimal("0") if fare_class == "flex" else Decimal(CHANGE_FEES.get(tier, "60"))
    difference = Decimal(str(new_fare)) - Decimal(str(old_fare))
    if fare_class in NOT_REFUNDABLE:
        difference = max(difference, Decimal("0"))
    set_variable("last_quote", {"fee": cents(fee), "difference": cents(difference)})
    return {"to_pay": cents(difference + fee), "fee": cents(fee), "currency": currency}
