"""A shop's orders, captured from its database: a view follows them, and visits are looked up in them.

The database is that of SHOP_DATABASE, such as postgresql://shop@db.example/shop; unless it is set, the app's own
PostgreSQL. It has to have a table shop.orders; `examples/orders_demo.py` creates one, and changes it.
"""

import os

import headrace as hr

app = hr.App("orders")

# E-mail addresses never enter the log: their hash is enough to see which orders belong together.
orders = app.capture(os.environ.get("SHOP_DATABASE"), "shop.orders", mask={"email": "hash"})


@app.view(key="id")  # becomes the PostgreSQL table orders.open_orders
def open_orders(orders):
    return orders.where("status <> 'shipped'").select("id", "customer", "status", "total")
