-- Every run computes it again from all orders.
CREATE MATERIALIZED VIEW per_product AS
SELECT product, count(*) AS orders, round(sum(amount), 2) AS amount FROM orders GROUP BY product;
